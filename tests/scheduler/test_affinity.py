"""Models: who is refused, who is preferred, who holds out, and that nobody waits for nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import GPU, Capabilities, ImageServer, Worker
from corral.scheduler.fit import Held, Room, refuse_ever, refuse_now
from corral.scheduler.plan import Line, Plan, Seat, Snapshot, Waiting, decide
from corral.scheduler.rank import MAX_HOLD_OUT_S, SMALL_FIRST_S, Wanted

MODELS = ("flux", "sdxl", "llama")


def worker(
    name: str, *loaded: str, vram_gb: float = 12.0, ahead: int = 8, **more: object
) -> Worker:
    can = Capabilities(
        cpus=4.0,
        memory_gb=16.0,
        gpus=(GPU(f"GPU-{name}", "x", vram_gb),),
        ahead=ahead,
        **({"models_present": MODELS, "workloads": ("python",)} | more),  # type: ignore[arg-type]
    )
    return Worker(name, name, "simulated", can, models_loaded=loaded)


def wanting(*models: str, urgent: bool = False, priority: int = 0) -> Shape:
    kind = QueueClass.INTERACTIVE if urgent else QueueClass.BATCH
    return Shape(Needs(gpus=1, models=models), queue_class=kind, priority=priority)


def world(
    seats: list[Seat], *lines: tuple[Shape, int], waited_s: float = 0.0, aging_s: float = 1e9
) -> Snapshot:
    seq, made = 0, []
    for shape, count in lines:
        waiting = []
        for _ in range(count):
            seq += 1
            waiting.append(Waiting(f"{'+'.join(shape.needs.models)}{seq}", seq, 1e6 - waited_s, 0))
        made.append(Line(shape, tuple(waiting), 10.0))
    return Snapshot(1e6, tuple(made), tuple(seats), aging_s, 0.0)


def busy(one: Worker, *models: str) -> Seat:
    """Something runs there and something waits there: no place, now or ahead."""
    needs = Needs(gpus=1, models=models)
    device = one.capabilities.gpus[0].uuid
    return Seat(one, (Held(needs, (device,), started=True), Held(needs)))


def where(plan: Plan) -> dict[str, str]:
    return {placement.job: placement.worker for placement in plan.placements}


def test_a_model_that_is_neither_there_nor_fetched_is_refused_with_a_sentence() -> None:
    shape = wanting("flux", "sdxl")
    lacking = worker("w", models_present=("flux",))
    assert refuse_ever(shape, lacking) == "it lacks the model sdxl and fetches none"
    assert refuse_ever(shape, worker("w", models_present=())) == (
        "it lacks the models flux, sdxl and fetches none"
    )
    silent = replace(lacking, servers=(ImageServer("webui", "http://a:1", "No answer from a."),))
    assert refuse_ever(shape, silent) == refuse_ever(shape, lacking)
    images = replace(shape, needs=replace(shape.needs, task="render"))
    silent = replace(silent, capabilities=replace(silent.capabilities, task_types=("render",)))
    assert refuse_ever(images, silent) == (
        "it lacks the model sdxl and fetches none; No answer from a"
    )
    there = replace(silent.capabilities, models_present=("flux", "sdxl"))
    images = replace(images, needs=replace(images.needs, gpus=1, vram_gb=1000))
    told = refuse_ever(images, replace(silent, capabilities=there))
    assert told is not None
    assert told.endswith("; by a table, and `needs: {vram_gb: …}` in the plan counts instead")
    assert refuse_ever(shape, worker("w", models_present=(), fetches_models=True)) is None
    assert refuse_ever(shape, worker("w", "sdxl", models_present=("flux",))) is None
    assert decide(world([Seat(lacking)], (shape, 1))).placements == ()


def test_loaded_goes_before_present_and_present_before_fetched() -> None:
    fetches = worker("a", models_present=(), fetches_models=True)
    present, loaded = worker("b"), worker("c", "flux", vram_gb=80.0)
    plan = decide(world([Seat(fetches), Seat(present), Seat(loaded)], (wanting("flux"), 3)))
    assert list(where(plan).values()) == ["c", "b", "a"]
    told = [placement.why for placement in plan.placements]
    assert "it has flux loaded" in told[0]
    assert "it loads flux from its disk" in told[1]
    assert "it fetches and loads flux" in told[2]


def test_a_worker_keeps_to_what_it_has_loaded_though_others_came_earlier() -> None:
    seats = [Seat(worker("a", "flux", ahead=0))]
    lines = ((wanting("sdxl"), 3), (wanting("flux"), 3))
    assert where(decide(world(seats, *lines))) == {"flux4": "a"}
    without = replace(seats[0], worker=replace(seats[0].worker, models_loaded=()))
    assert where(decide(world([without], *lines))) == {"sdxl1": "a"}


def test_a_higher_standing_does_not_wait_for_what_is_loaded() -> None:
    seats = [Seat(worker("a", "flux", ahead=0))]
    flux = (wanting("flux"), 3)
    assert where(decide(world(seats, flux, (wanting("sdxl", priority=1), 1)))) == {"sdxl4": "a"}
    assert where(decide(world(seats, flux, (wanting("sdxl", urgent=True), 1)))) == {"sdxl4": "a"}


def test_a_turn_does_not_wait_for_what_is_loaded() -> None:
    seats = [Seat(worker("a", "flux", ahead=0))]
    lines = ((wanting("sdxl"), 3), (wanting("flux"), 3))
    plan = decide(world(seats, *lines, waited_s=100.0, aging_s=60.0))
    assert where(plan) == {"sdxl1": "a"}
    assert plan.turn


def test_the_worker_that_is_emptied_for_a_turn_has_the_model_or_is_the_smallest() -> None:
    big, small, has = worker("a", vram_gb=24.0), worker("b", vram_gb=8.0), worker("c", "flux")
    shape = wanting("flux")
    for seats, kept in (([big, small, has], "c"), ([big, small], "b")):
        held = [busy(one, *one.models_loaded) for one in seats]
        asked = world(held, (shape, 1), waited_s=100.0, aging_s=60.0)
        other = Line(wanting("llama", urgent=True), (Waiting("o", 99, 1e6, 0),), 10.0)
        roomy = tuple(Seat(seat.worker, seat.held[:1]) for seat in asked.seats)
        plan = decide(replace(asked, lines=(*asked.lines, other), seats=roomy))
        assert plan.overdue == "flux1"
        assert where(plan)
        assert kept not in where(plan).values()


def test_an_interactive_job_holds_out_for_its_model_and_not_for_long() -> None:
    seats = [Seat(worker("a", "sdxl", ahead=0)), busy(worker("b", "flux"), "flux")]
    lines = ((wanting("flux", urgent=True), 1), (wanting("sdxl"), 2))
    assert where(decide(world(seats, *lines))) == {"sdxl2": "a"}
    late = decide(world(seats, *lines, waited_s=MAX_HOLD_OUT_S))
    assert where(late) == {"flux1": "a"}


def test_small_workers_load_for_an_interactive_job_first() -> None:
    seats = [Seat(worker("big", "sdxl", vram_gb=24, ahead=0)), busy(worker("small", "llama"))]
    lines = ((wanting("flux", urgent=True), 1), (wanting("sdxl"), 2))
    assert where(decide(world(seats, *lines))) == {"sdxl2": "big"}
    late = decide(world(seats, *lines, waited_s=SMALL_FIRST_S))
    assert where(late) == {"flux1": "big"}


def test_no_worker_stays_idle_for_a_model() -> None:
    seats = [Seat(worker("a", "sdxl")), busy(worker("b", "flux"), "flux")]
    for urgent in (True, False):
        assert where(decide(world(seats, (wanting("flux", urgent=urgent), 1)))) == {"flux1": "a"}


def test_what_is_sent_ahead_of_a_card_does_not_grow_with_processors() -> None:
    plan = decide(world([Seat(worker("a"))], (wanting("flux"), 9)))
    assert [placement.ahead for placement in plan.placements] == [False, True]


def test_why_names_what_a_worker_keeps_to() -> None:
    room = Room(worker("a", "flux"))
    wanted = Wanted([(wanting("sdxl"), 3), (wanting("flux"), 3)])
    assert wanted.keeps_to(wanting("sdxl"), 0.0, room, [room]) == (
        "it has flux loaded and jobs for that wait; it loads sdxl after them"
    )
    assert wanted.keeps_to(wanting("flux"), 0.0, room, [room]) is None
    assert Wanted([(wanting("sdxl"), 3)]).keeps_to(wanting("sdxl"), 0.0, room, [room]) is None


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    names = st.lists(st.sampled_from(MODELS), max_size=2, unique=True)
    seats = [
        Seat(
            worker(
                f"w{n}",
                *draw(names),
                vram_gb=draw(st.sampled_from([8.0, 12.0, 24.0])),
                ahead=draw(st.sampled_from([0, 1, 8])),
                models_present=tuple(draw(st.sets(st.sampled_from(MODELS)))),
            ),
            tuple(
                Held(Needs(gpus=1, models=tuple(draw(names))))
                for _ in range(draw(st.integers(0, 2)))
            ),
        )
        for n in range(draw(st.integers(1, 4)))
    ]
    shapes = st.builds(
        lambda models, urgent, priority: wanting(*models, urgent=urgent, priority=priority),
        names,
        st.booleans(),
        st.integers(0, 1),
    )
    lines = [
        (shape, draw(st.integers(1, 4)))
        for shape in draw(st.lists(shapes, max_size=5, unique=True))
    ]
    return world(seats, *lines, waited_s=draw(st.sampled_from([0.0, 10.0, 40.0])))


@given(crowded())
@settings(max_examples=300, deadline=None)
def test_decided_to_the_end_what_waits_has_a_reason_everywhere(asked: Snapshot) -> None:
    """As the loop does: decide until nothing is placed. Then `why` has an answer for each."""
    while (plan := decide(asked)).placements:
        asked = after(asked, plan)
    rooms = [Room(seat.worker, seat.held) for seat in asked.seats]
    wanted = Wanted((line.shape, len(line.waiting)) for line in asked.lines)
    for line in asked.lines:
        waited_s = asked.now - line.waiting[0].since
        for room in rooms:
            assert (
                wanted.keeps_to(line.shape, waited_s, room, rooms)
                or refuse_now(line.shape, room)
                or room.blocked(line.shape.needs)
            )


def after(asked: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot that follows once a plan is written down."""
    shapes = {one.job: line.shape for line in asked.lines for one in line.waiting}
    sent = where(plan)
    seats = tuple(
        replace(
            seat,
            held=(
                *seat.held,
                *(Held(shapes[job].needs) for job, name in sent.items() if name == seat.worker.id),
            ),
        )
        for seat in asked.seats
    )
    lines = (
        replace(line, waiting=tuple(one for one in line.waiting if one.job not in sent))
        for line in asked.lines
    )
    return replace(asked, seats=seats, lines=tuple(line for line in lines if line.waiting))
