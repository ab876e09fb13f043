"""hypothesis at `/worker`: whatever a worker says, the controller goes on, believes it nothing that
is not its own, and hangs up with a code and a sentence where it cannot go on with it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import corral
from corral.api.workers.worker_socket import LATER, STRANGER_BYTES, STRANGERS, TOO_BIG
from corral.core.errors import Conflict
from corral.core.frames import MetricValue
from corral.core.job import Blob, Failure
from corral.core.malformed import MALFORMED
from corral.core.worker import Capabilities
from corral.protocol import messages as wire
from tests.api.rest import Rest
from tests.api.worker_door import Card, Door
from tests.crash.books import stories
from tests.eventually import eventually
from tests.live import LiveController

OURS = {
    wire.CLOSE_MALFORMED,
    wire.CLOSE_UNAUTHORIZED,
    wire.CLOSE_REVOKED,
    wire.CLOSE_INCOMPATIBLE,
    wire.CLOSE_OUT_OF_ORDER,
}
FRAME_BYTES = 2 * STRANGER_BYTES
EXAMPLES = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    environ = {
        "CORRAL_GRACE_S": "60",
        "CORRAL_WORKER_NAME": "home",
        "CORRAL_BACKOFF_S": "0",
        # Else what it does here keeps it from getting the next job for a while.
        "CORRAL_CIRCUIT_FAILURES": "1000",
    }
    limits = {"frame_bytes": FRAME_BYTES}
    home = tmp_path_factory.mktemp("door")
    with LiveController(home, environ=environ, limits=limits) as controller:
        yield controller
        with corral.Client(controller.address, controller.token) as client:
            assert client.run(abs, (-1,), output=None) == 1, "it works as ever"
    assert "Traceback" not in controller.log
    stories(controller.home)


@pytest.fixture(scope="module")
def rogue(asked: LiveController) -> Card:
    return Card(asked, "rogue")


def sentence(closed: tuple[int, str]) -> int:
    """The code it hung up with; with it comes a sentence."""
    code, reason = closed
    assert len(reason) > 10, closed
    assert reason.endswith((".", "…")), closed
    return code


# --- what anybody could say ---

TEXTS = st.text(max_size=30) | st.sampled_from(["🐎" * 60, "\0", "x" * 5000, "w-0", "1", "2"])
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.integers(-2, 3)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TAGS = [kind.__name__ for kind in (*wire.FromWorker.__args__, *wire.FromController.__args__)]
TAGGED = st.builds(
    lambda tag, fields: {**fields, "type": tag},
    st.sampled_from(TAGS) | TEXTS,
    st.dictionaries(
        st.sampled_from(["job", "attempt", "at", "seconds", "digest", "reason"]) | TEXTS, JSON
    ),
)
NONSENSE = (
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.lists(TAGGED, min_size=1, max_size=3).map(lambda value: json.dumps(value).encode())
)


def readable(frame: bytes) -> list[wire.FromWorker] | None:
    try:
        return wire.decode_from_worker(frame)
    except MALFORMED:
        return None


def test_anything_instead_of_a_register(asked: LiveController, rogue: Card) -> None:
    @EXAMPLES
    @given(NONSENSE, st.booleans())
    def ask(frame: bytes, as_text: bool) -> None:
        with Door(asked, rogue.credential) as door:
            if as_text:
                door.say_text(frame.decode(errors="replace"))
                frame = frame.decode(errors="replace").encode()
            else:
                door.say_bytes(frame)
            found = readable(frame)
            expected = wire.CLOSE_MALFORMED if found is None else wire.CLOSE_OUT_OF_ORDER
            assert sentence(door.closed()) == expected

    ask()


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "worker_id": TEXTS,
        "software_version": TEXTS,
        "runner_protocol": TEXTS,
        "name": TEXTS,
        "gpu_name": TEXTS,
        "vram_gb": NUMBERS,
        "max_batch": NUMBERS,
        "supported_models": st.lists(TEXTS, max_size=2),
        "attempts": st.lists(st.tuples(TEXTS, NUMBERS) | JSON, max_size=2),
        "capabilities": JSON
        | st.fixed_dictionaries(
            {"cpus": NUMBERS, "memory_gb": NUMBERS},
            optional={
                "gpus": st.lists(
                    st.fixed_dictionaries({"uuid": TEXTS, "name": TEXTS, "vram_gb": NUMBERS}),
                    max_size=3,
                ),
                "labels": st.lists(TEXTS, max_size=2),
                "ahead": NUMBERS,
                "workloads": st.just([]),
            },
        ),
    },
)


def test_any_register(asked: LiveController, rogue: Card) -> None:
    """Welcomed, whatever it says it has, or told why not."""
    own = json.loads(wire.encode(rogue.register(capabilities={"cpus": 1, "memory_gb": 1})))

    @EXAMPLES
    @given(FIELDS)
    def ask(fields: dict[str, Any]) -> None:
        frame = json.dumps([{**own, **fields}]).encode()
        with (
            Door(asked, rogue.credential) as door,
            corral.Client(asked.address, asked.token) as client,
        ):
            door.say_bytes(frame)
            try:
                (welcome,) = door.hear()
                assert isinstance(welcome, wire.WorkerWelcome)
                assert readable(frame) is not None
                door.say(wire.WorkerHeartbeat())
                assert "rogue" in {worker.name for worker in client.workers()}
            except Exception as error:
                if not hasattr(error, "rcvd"):
                    raise
                assert sentence(door.closed()) in OURS

    ask()
    with Door(asked, rogue.credential) as door:
        door.joined(rogue.register())


NOT_UTF8 = b'[{"type":"WorkerGoodbye","reason":"\xff"}]'
DEEP = b'[{"type":"WorkerGoodbye","odd":' + b"[" * 100_000


@pytest.mark.parametrize("frame", [NOT_UTF8, DEEP], ids=["not utf-8", "deep"])
def test_bytes_that_break_readers_are_malformed(
    asked: LiveController, rogue: Card, frame: bytes
) -> None:
    with Door(asked, rogue.credential) as door:
        door.say_bytes(frame)
        assert sentence(door.closed()) == wire.CLOSE_MALFORMED
    with Door(asked, rogue.credential) as door:
        door.joined(rogue.register())
        door.say_bytes(frame)
        assert sentence(door.closed()) == wire.CLOSE_MALFORMED


def test_malformed_after_the_register(asked: LiveController, rogue: Card) -> None:
    @EXAMPLES
    @given(NONSENSE.filter(lambda frame: readable(frame) is None))
    def ask(frame: bytes) -> None:
        with Door(asked, rogue.credential) as door:
            door.joined(rogue.register())
            door.say_bytes(frame)
            assert sentence(door.closed()) == wire.CLOSE_MALFORMED

    ask()


def _labelled(card: Card, label: str) -> wire.WorkerRegister:
    register = card.register()
    capabilities = msgspec.structs.replace(register.capabilities, labels=(label,))
    return msgspec.structs.replace(register, capabilities=capabilities)


def test_each_no_has_a_code_of_its_own(asked: LiveController, rogue: Card) -> None:
    other = Card(asked, "other")
    cases: list[tuple[int, str, wire.WorkerRegister]] = [
        (wire.CLOSE_INCOMPATIBLE, rogue.credential, rogue.register(runner_protocol="🐎" * 99)),
        (wire.CLOSE_INCOMPATIBLE, rogue.credential, rogue.register(runner_protocol="9" * 256)),
        (wire.CLOSE_MALFORMED, rogue.credential, rogue.register(runner_protocol="9" * 5000)),
        (wire.CLOSE_MALFORMED, rogue.credential, rogue.register(name="barn\x1b[2J")),
        (wire.CLOSE_MALFORMED, rogue.credential, rogue.register(name="barn\n")),
        (wire.CLOSE_MALFORMED, rogue.credential, _labelled(rogue, "ssd\u202e")),
        (wire.CLOSE_UNAUTHORIZED, "wrong", rogue.register()),
        (wire.CLOSE_UNAUTHORIZED, rogue.credential, other.register()),
        (wire.CLOSE_UNAUTHORIZED, asked.token, rogue.register()),
        (wire.CLOSE_REVOKED, rogue.credential, rogue.register(worker_id="w-nobody")),
    ]
    for expected, credential, register in cases:
        with Door(asked, credential) as door:
            door.say(register)
            assert sentence(door.closed()) == expected
    with Door(asked, rogue.credential) as door:
        door.joined(rogue.register())
        door.say(rogue.register())
        assert sentence(door.closed()) == wire.CLOSE_OUT_OF_ORDER
    with Door(asked, rogue.credential) as door:
        door.say(rogue.register(), wire.WorkerHeartbeat())
        assert sentence(door.closed()) == wire.CLOSE_OUT_OF_ORDER
    for registered in (False, True):
        with Door(asked, rogue.credential) as door:
            if registered:
                door.joined(rogue.register())
            door.say_bytes(b"[" + b" " * FRAME_BYTES + b"]")
            code, reason = door.closed()
            assert (code, "limit" in reason) == (TOO_BIG, True), reason
    with Door(asked, rogue.credential) as door:
        door.joined(rogue.register())
        door.say(*[wire.WorkerHeartbeat()] * (wire.MOST_MESSAGES + 1))
        assert sentence(door.closed()) == wire.CLOSE_MALFORMED
    with Door(asked, rogue.credential) as first, Door(asked, rogue.credential) as second:
        first.joined(rogue.register())
        second.joined(rogue.register())
        assert sentence(first.closed()) == wire.CLOSE_REPLACED


def test_little_is_kept_of_strangers(asked: LiveController, rogue: Card) -> None:
    with Door(asked, "nobody's") as door:
        door.say_pieces(b"[" + b" " * STRANGER_BYTES)
        code, reason = door.closed()
        assert (code, "unknown credential" in reason) == (TOO_BIG, True), reason
    with contextlib.ExitStack() as crowd:
        doors = [crowd.enter_context(Door(asked, "nobody's")) for _ in range(STRANGERS + 1)]
        assert sentence(doors[-1].closed()) == LATER
        with Door(asked, rogue.credential) as door:
            door.joined(rogue.register())
            door.say(wire.WorkerGoodbye("x" * (STRANGER_BYTES + 1)))  # known: nothing is held back
    with Door(asked, rogue.credential) as door:
        door.joined(rogue.register())


# --- what a worker could say of jobs ---


def about(jobs: st.SearchStrategy[str], attempts: st.SearchStrategy[int]) -> Any:
    """Any message about these attempts."""
    at = st.floats(0, 1e12) | st.sampled_from([0.0, -1.0, 1e300])
    failures = st.builds(
        Failure,
        code=st.sampled_from(["exception", "cancelled", "out_of_memory", "worker_lost", "odd"]),
        message=TEXTS,
    )
    blobs = st.none() | st.binary(max_size=20).map(Blob.of)
    key = {"job": jobs, "attempt": attempts}
    ended = {**key, "at": at, "seconds": at, "digest": TEXTS}
    words = st.sampled_from(["stdout", "stderr", "odd"])
    return st.one_of(
        st.builds(wire.JobStarted, **key, at=at, devices=st.just(("GPU-0",))),
        st.builds(wire.JobOutput, **key, stream=words, text=TEXTS),
        st.builds(wire.JobProgress, **key, fraction=st.none() | at, message=TEXTS),
        st.builds(wire.JobCompleted, **ended, result=blobs),
        st.builds(wire.JobFailed, **ended, failure=failures),
        st.builds(wire.JobReturned, **key, reason=TEXTS),
    )


def test_jobs_of_others(asked: LiveController, rogue: Card) -> None:
    """One that another worker runs, one that ended, one that waits: nothing of it is believed, not
    even after it was claimed. Nor are attempts that never were."""
    honest = Card(asked, "honest")
    with (
        corral.Client(asked.address, asked.token) as client,
        Door(asked, honest.credential) as door,
    ):
        door.joined(honest.register())
        running = client.submit(abs, (-1,), worker="honest")
        dispatch = door.dispatched(running.id)
        door.say(wire.JobStarted(running.id, 1, 1.0))
        ended = client.submit(abs, (-2,), worker="home")
        assert ended.result(20) == 2
        waiting = client.submit(abs, (-3,), gpus=60, wait=True)
        jobs = [running.id, ended.id, waiting.id]
        while client.job(running.id).status().state != "running":
            pass
        before = {job: stories(asked.home)[job] for job in jobs}

        @EXAMPLES
        @given(
            st.lists(about(st.sampled_from([*jobs, "nobody"]), st.integers(0, 3)), max_size=4),
            st.lists(st.tuples(st.sampled_from([*jobs, "nobody"]), st.integers(0, 3)), max_size=3),
        )
        def ask(said: list[wire.Message], claimed: list[tuple[str, int]]) -> None:
            with Door(asked, rogue.credential) as other:
                other.joined(rogue.register(attempts=tuple(claimed)))
                other.say(*said, wire.WorkerGoodbye())

        ask()
        every = [(job, number) for job in (*jobs, "nobody") for number in range(4)]
        with Door(asked, rogue.credential) as other:
            other.joined(rogue.register(attempts=tuple(every)))
            other.say(*(wire.JobCompleted(*key, 1.0, 1.0, "", Blob.of(b"lies")) for key in every))
            received: set[tuple[str, int]] = set()
            while len(received) < len(every):  # all of it was heard, and settled
                received |= {
                    (one.job, one.attempt)
                    for one in other.hear()
                    if isinstance(one, wire.ResultReceived)
                }
            other.say(wire.WorkerGoodbye())
        assert {job: stories(asked.home)[job] for job in jobs} == before
        door.say(wire.JobCompleted(running.id, 1, 1.0, 1.0, dispatch.digest, None))
        running_view = client.job(running.id)
        while not running_view.status().ended:
            pass
        assert running_view.status().state == "succeeded"
        waiting.cancel()


LONG = "x" * 100_000


def test_what_it_says_of_ends_is_cut_before_it_is_kept(asked: LiveController, rogue: Card) -> None:
    with (
        corral.Client(asked.address, asked.token) as client,
        Door(asked, rogue.credential) as door,
    ):
        door.joined(rogue.register())
        told = Failure("exception", LONG, type=LONG, traceback=LONG, pickled=LONG.encode())
        for result in (Blob("../../token", 5), Blob("0" * 64, 9000, b"x" * 9000), None):
            job = client.submit(abs, (-1,), worker="rogue")
            dispatch = door.dispatched(job.id)
            door.say(wire.JobStarted(job.id, dispatch.attempt, 1e300))
            end = (job.id, dispatch.attempt, -1e300, 1e308, dispatch.digest)
            if result is None:
                door.say(wire.JobFailed(*end, told))
            else:
                door.say(wire.JobCompleted(*end, result))
            while not job.status().ended:
                pass
            shown = Rest(asked)("GET", f"/jobs/{job.id}").json
            code = "exception" if result is None else "result_refused"
            assert (shown["state"], shown["failure"]["code"]) == ("failed", code)
            assert len(json.dumps(shown)) < 100_000
            assert shown["seconds"] <= 7 * 24 * 3600, "nothing is allowed to take longer"
            assert Rest(asked)("GET", f"/jobs/{job.id}/why").status == 200, "it has calendar dates"


def test_what_it_says_on_the_way_is_cut_before_it_is_kept(
    asked: LiveController, rogue: Card
) -> None:
    """Everybody's list shows it, and what it says when it leaves is said of each job it had."""
    names: dict[str, MetricValue] = {str(number) + LONG: 1.0 for number in range(3)}
    with (
        corral.Client(asked.address, asked.token) as client,
        Door(asked, rogue.credential) as door,
    ):
        door.joined(rogue.register())
        jobs = [client.submit(abs, (-1,), worker="rogue") for _ in range(3)]
        for job in jobs:
            door.dispatched(job.id)
            door.say(
                wire.JobProgress(job.id, 1, metrics={str(n): 1.0 for n in range(2_000)}),
                wire.JobProgress(job.id, 1, metrics=names),
                wire.JobProgress(job.id, 1, 0.5, LONG),
            )
        while Rest(asked)("GET", f"/jobs/{jobs[-1].id}").json.get("progress") is None:
            pass
        assert len(Rest(asked)("GET", "/jobs?limit=3").body) < 200_000
        door.say(wire.WorkerGoodbye(LONG))
        for job in jobs:
            while job.status().state in ("placed", "running"):
                pass
            assert len(Rest(asked)("GET", f"/jobs/{job.id}/why").body) < 10_000
            job.cancel()


def test_a_worker_that_hands_everything_back_is_left_alone(
    tmp_path: Path,
) -> None:
    environ = {"CORRAL_CIRCUIT_FAILURES": "2", "CORRAL_CIRCUIT_COOL_S": "600"}
    environ |= {"CORRAL_BACKOFF_S": "0.1", "CORRAL_WORKER_ENABLED": "false"}
    with LiveController(tmp_path, environ=environ) as controller:
        card = Card(controller, "lazy")
        with (
            corral.Client(controller.address, controller.token) as client,
            Door(controller, card.credential) as door,
        ):
            door.joined(card.register())
            job = client.submit(abs, (-1,))
            given = 0
            while "circuit_opened" not in controller.log:
                with contextlib.suppress(TimeoutError):
                    for message in door.hear(0.1):
                        if isinstance(message, wire.JobDispatch):
                            given += 1
                            door.say(wire.JobReturned(job.id, message.attempt, "no"))
            assert 2 <= given <= 30, "a pause after each"
            # The line in the log comes before the commit that puts the job back.
            eventually(lambda: "circuit is open" in str(job.why()), "the reason why it waits")
            job.cancel()


def test_claims_on_others_attempts_keep_nobody_from_running(tmp_path: Path) -> None:
    """A worker that says it has everything has only what was sent to it: before it is placed, while
    it runs elsewhere, and after the claimant has left."""
    yard = tmp_path / "yard"
    yard.mkdir()
    environ = {"CORRAL_WORKER_CPUS": "2", "CORRAL_WORKER_WRITE_PATHS": f"[{yard}]"}
    with LiveController(tmp_path / "home", environ=environ) as controller:
        card = Card(controller, "claimant")
        with corral.Client(controller.address, controller.token) as client:
            running = client.submit(gated, (str(yard),))
            while running.status().state != "running":
                pass
            waiting = [client.submit(abs, (-n,), cpus=2) for n in range(12)]
            real = [(job.id, number) for job in [running, *waiting] for number in (1, 2)]
            made_up = [(f"{n:015d}", 1) for n in range(100_000 - len(real))]
            with Door(controller, card.credential) as door:
                door.joined(card.register(capabilities=IDLE, attempts=(*real, *made_up)))
                door.say(lie(running.id, 1))
                (yard / "gate").touch()
                assert running.result(timeout=30) == "it ran"
                assert [job.result(timeout=30) for job in waiting] == list(range(12))
                door.say(*(lie(job.id, 1) for job in waiting))
            assert {job.status().attempt for job in [running, *waiting]} == {1}
    found = stories(controller.home)
    assert all(len(found[job.id]) <= 4 for job in [running, *waiting]), "no orphans either"


IDLE = Capabilities(cpus=0, memory_gb=1, workloads=())


def lie(job: str, number: int) -> wire.JobCompleted:
    return wire.JobCompleted(job, number, 1.0, 1.0, "")


def gated(yard: str) -> str:
    import time
    from pathlib import Path

    while not Path(yard, "gate").exists():
        time.sleep(0.02)
    return "it ran"


OWN = "the job that it got"


def test_anything_about_its_own_attempts(asked: LiveController, rogue: Card) -> None:
    """In any order, with any numbers: the job has one end, and everybody can read it."""
    seen: list[str] = []

    @EXAMPLES
    @given(st.lists(about(st.just(OWN), st.just(1) | st.integers(0, 3)), max_size=5))
    def ask(said: list[Any]) -> None:
        with (
            corral.Client(asked.address, asked.token) as client,
            Door(asked, rogue.credential) as door,
        ):
            door.joined(rogue.register())
            job = client.submit(abs, (-1,), worker="rogue", retries=1)
            seen.append(job.id)
            door.dispatched(job.id)
            door.say(*(msgspec.structs.replace(one, job=job.id) for one in said))
            with contextlib.suppress(Conflict):  # it may have ended
                job.cancel()
            failure = Failure("cancelled", "It was cancelled.")
            while not job.status().ended:
                attempt = max(1, job.status().attempt)
                door.say(wire.JobFailed(job.id, attempt, 1.0, 1.0, "", failure))
            assert job.status().state in ("cancelled", "succeeded", "failed")

    ask()
    written = stories(asked.home)
    assert all(len(written[job]) > 1 for job in seen)
    listed = Rest(asked)("GET", "/jobs?limit=100")
    assert listed.status == 200
