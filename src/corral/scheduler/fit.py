"""Which worker can take which shape, and if not, why not, in a sentence a person understands.

`decide` asks the same functions that answer `corral why`, so both always agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import Struct

from corral.core.images.pipeline import RENDER, WITH
from corral.core.job import Needs, Shape
from corral.core.worker import (
    GPU,
    SLACK,
    Capabilities,
    Capacity,
    Holding,
    Worker,
    closed_path,
    holding_of,
    is_called,
    stays_behind,
    suits,
)

AHEAD_S = 0.25
"""Work sent ahead per processor: enough to hide the way there, too little to wait long behind."""

MOST_AHEAD = 1_000
"""Sent ahead by one decision; free slots are all filled, and the next decision follows at once."""

KindAhead = tuple[int, int, int]
"""How many go ahead per processor; GPUs and tenths of one where work with models waits for them."""

NOTHING: frozenset[str] = frozenset()


class Held(Struct, frozen=True, gc=False):
    """An attempt that a worker has, in the order it was sent; or several that wait, all alike."""

    needs: Needs
    devices: tuple[str, ...] = ()
    started: bool = False
    above_vram_gb: float = 0.0
    count: int = 1

    def follows(self, other: Held) -> bool:
        """Whether it waits, as the one before it does, and finds room where that does."""
        return (
            self.needs is other.needs
            and not self.started
            and not other.started
            and self.above_vram_gb == other.above_vram_gb
        )


class Room:
    """What is left of one worker while a decision is made."""

    __slots__ = (
        "ahead", "ahead_without_gpu", "capacity", "closed", "kept_for", "models", "on_probe",
        "worker",
    )  # fmt: skip

    def __init__(self, worker: Worker, held: Sequence[Held] = ()) -> None:
        self.worker = worker
        self.capacity = Capacity(worker.capabilities, worker.taken)
        self.ahead = 0
        self.ahead_without_gpu = 0
        self.closed = ""
        """Why it gets nothing, though it is there, in words."""
        self.on_probe = False
        """It takes one job and no other."""
        self.kept_for: str | None = None
        """What this worker is kept free for, where it is, in words."""
        self.models = frozenset(worker.models_loaded) if worker.models_loaded else NOTHING
        """What it will have loaded once it has done what it holds."""
        if not held:
            return
        for attempt in held:
            if attempt.needs.models:
                self.load(attempt.needs)
            if attempt.started:
                self.capacity.take(holding_of(attempt.needs, attempt.devices))
        for attempt in held:
            if not attempt.started:
                self._line_up(attempt)

    def _line_up(self, waiting: Held) -> None:
        """What was sent and has not begun begins as far as there is room, and else waits."""
        needs, above, left = waiting.needs, waiting.above_vram_gb, waiting.count
        while left and not self.blocked(needs):
            holding = self.capacity.fits(needs, above_vram_gb=above)
            if holding is None:
                break
            self.capacity.take(holding)
            left -= 1
        self.send_ahead(needs, left)

    def load(self, needs: Needs) -> None:
        """After a load only what it loaded is certain: the rest may have made room for it."""
        if not self.models.issuperset(needs.models):
            self.models = frozenset(needs.models)

    def has_loaded(self, needs: Needs) -> bool:
        return self.models.issuperset(needs.models)

    def send_ahead(self, needs: Needs, count: int = 1) -> None:
        self.ahead += count
        if not needs.wants_gpu:
            self.ahead_without_gpu += count

    def blocked(self, needs: Needs) -> bool:
        return stays_behind(needs, self.ahead, self.ahead_without_gpu)

    def fits_now(self, shape: Shape) -> Holding | None:
        return self.capacity.fits(shape.needs, above_vram_gb=shape.above_vram_gb)

    def takes_ahead(self, typical_s: float, needs: Needs) -> bool:
        limit = ahead_limit(self.worker.capabilities, kind_ahead(needs, typical_s))
        return not self.on_probe and self.ahead < limit


def kind_ahead(needs: Needs, typical_s: float) -> KindAhead:
    each = max(1, int(AHEAD_S / typical_s)) if typical_s > 0 else 1
    return (each, needs.gpus, needs.gpu_tenths) if needs.models else (each, 0, 0)


def ahead_limit(can: Capabilities, kind: KindAhead) -> int:
    """How many attempts a worker takes ahead. More processors do not shorten a wait for cards."""
    each, gpus, tenths = kind
    limit = min(can.ahead, each * max(1, int(can.cpus)))
    if gpus or tenths:
        cards = len(can.gpus) // (gpus or 1) * (10 // (tenths or 10))
        limit = min(limit, each * max(1, cards))
    return limit


def refuse_ever(shape: Shape, worker: Worker) -> str | None:
    """Why this worker can never run this shape, busy or not; None if it can."""
    needs, can = shape.needs, worker.capabilities
    if worker.id in shape.avoid:
        return "an earlier attempt failed there for a reason that would repeat"
    if needs.worker == "local" and not worker.local:
        return "the job asks for the controller's own machine"
    if needs.worker not in ("auto", "local", worker.name, worker.id):
        return f"the job asks for worker {needs.worker}"
    if shape.workload not in can.workloads:
        return f"it does not accept {shape.workload} jobs"
    if needs.task and needs.task not in can.task_types:
        return _refuse_task(needs.task)
    if can.reserved_for and shape.queue_class != can.reserved_for:
        return f"it is reserved for {can.reserved_for} jobs"
    if needs.wants_gpu and can.suits == "cpu-only":
        return "its class is cpu-only: it takes no jobs that need a GPU"
    for label in needs.labels:
        if label not in can.labels and not any(
            have.partition("=")[0] == label for have in can.labels
        ):
            return f"it lacks the label {label}"
    if needs.cpus > can.cpus + SLACK:
        return f"needs {counted(needs.cpus, 'CPU')}, it has {can.cpus:g}"
    if needs.memory_gb > can.memory_gb + SLACK:
        return f"needs {needs.memory_gb:g} GB of memory, it has {can.memory_gb:g}"
    if needs.read and (path := closed_path(needs, can, local=worker.local)):
        owner = ", or the home's own token asks for it" if worker.local else ""
        return f"jobs may not read {path} there until its worker.read_paths has it{owner}"
    if needs.models:
        lacking = [model for model in needs.models if not has_model(worker, model)]
        if lacking:
            named = ", ".join(lacking)
            silent = _silent(worker) if needs.task else ""
            return f"it lacks the model{'s' * (len(lacking) > 1)} {named} and fetches none{silent}"
    if needs.wants_gpu:
        return _refuse_gpus(shape, worker)
    return None


def _silent(worker: Worker) -> str:
    """Who could have had the models of an image job, and does not say."""
    return "".join(f"; {one.trouble.rstrip('.')}" for one in worker.servers if one.trouble)


def _refuse_task(task: str) -> str:
    task, _, stage = task.partition(WITH)
    beyond = f" with {stage}" if stage else ""
    if task == RENDER:
        lacks = f"it has no backend that renders images with models{beyond}"
        return lacks if stage else f"{lacks}: `worker.backends` of its corral.yaml names them"
    return f"it does not take {task} tasks{beyond}"


def refuse_name(needs: Needs, workers: Sequence[Worker]) -> str | None:
    """That the worker which a job asks for is nobody's name: a slip of the pen, most likely."""
    wanted = needs.worker
    if wanted in ("auto", "local") or any(wanted in (one.name, one.id) for one in workers):
        return None
    names = sorted(worker.name for worker in workers)
    near = get_close_matches(wanted, names, 1)
    meant = f"did you mean {near[0]}?" if near else f"there {_listed(names)}"
    return f"no worker is called {wanted}; {meant}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names[:5])}{more}"


def has_model(worker: Worker, model: str) -> bool:
    """Whether a worker can have a model loaded, sooner or later."""
    can = worker.capabilities
    return can.fetches_models or model in can.models_present or model in worker.models_loaded


def _refuse_gpus(shape: Shape, worker: Worker) -> str | None:
    needs, gpus = shape.needs, worker.capabilities.gpus
    count = needs.gpus or 1
    if len(gpus) < count:
        called = f" called {needs.gpu}" if needs.gpu else ""
        lacks = f"needs {counted(count, 'GPU')}{called}, it has {len(gpus) or 'none'}"
        if gpus or not needs.task:
            return lacks
        return f"{lacks} (a plan for a server without one says `needs: {{gpus: 0}}`)"
    suited = [gpu for gpu in gpus if suits(gpu, needs, shape.above_vram_gb)]
    if len(suited) >= count:
        return None
    alike = [gpu for gpu in gpus if not needs.gpu or is_called(gpu.name, needs.gpu)]
    wanted = f"needs {counted(count, 'GPU')}{_kind(needs)}"
    if len(alike) < count:
        return f"{wanted}, it has {_named(gpus)}"
    most = max(gpu.vram_gb for gpu in alike)
    if most < needs.vram_gb:
        hint = "; by a table, and `needs: {vram_gb: …}` in the plan counts instead"
        return f"{wanted}, its largest has {most:g}{hint if needs.task else ''}"
    larger = f"{len(suited)} of the {count} larger GPUs it needs" if suited else "no larger GPU"
    if shape.above_vram_gb >= needs.vram_gb:
        return f"ran out of memory on {shape.above_vram_gb:g} GB of VRAM, it has {larger}"
    return f"{wanted}, it has {len(suited)} such"


def _kind(needs: Needs) -> str:
    """What each of the GPUs must be, as it goes on behind their number."""
    called = f" called {needs.gpu}" if needs.gpu else ""
    return f"{called} with {needs.vram_gb:g} GB of VRAM" if needs.vram_gb else called


def _named(gpus: Sequence[GPU]) -> str:
    many = Counter(gpu.name for gpu in gpus)
    return " and ".join(f"{count} {name}" for name, count in sorted(many.items()))


def refuse_beside_others(shape: Shape, worker: Worker) -> str | None:
    """Why processes that are not ours leave too little of its GPUs, even if nothing of ours ran
    there; nobody knows for how long."""
    if not worker.taken or not shape.needs.wants_gpu:
        return None
    empty = Capacity(worker.capabilities, worker.taken)
    if empty.fits(shape.needs, above_vram_gb=shape.above_vram_gb) is not None:
        return None
    lost = sum(one.lost for one in worker.readings)
    if lost:
        return f"needs {_wanted(shape)}, and its driver does not answer for {counted(lost, 'GPU')}"
    return f"needs {_wanted(shape)}, and {_others(empty)}"


def refuse_silent(shape: Shape, worker: Worker) -> str | None:
    """Why an image job waits for a worker's server to answer; other work goes on there."""
    gone, needs = worker.withdrawn, shape.needs
    if not gone or not needs.task:
        return None
    if needs.task not in gone.tasks and not any(name in gone.models for name in needs.models):
        return None
    return f"its image server does not answer{_silent(worker)}"


def could_run(shape: Shape, worker: Worker) -> bool:
    """Whether it could, if nothing of ours ran there."""
    return (
        refuse_ever(shape, worker) is None
        and refuse_silent(shape, worker) is None
        and refuse_beside_others(shape, worker) is None
    )


def _wanted(shape: Shape) -> str:
    needs = shape.needs
    wanted = f"{needs.gpu_tenths / 10:g} of a GPU" if needs.gpu_tenths else ""
    wanted = wanted or counted(needs.gpus, "GPU")
    if shape.above_vram_gb >= max(needs.vram_gb, SLACK):
        called = f" called {needs.gpu}" if needs.gpu else ""
        return f"{wanted}{called} with more than {shape.above_vram_gb:g} GB of VRAM"
    return f"{wanted}{_kind(needs)}"


def _others(free: Capacity) -> str:
    held = sum(free.others.values())
    return f"{held:.3g} GB are used by processes that are not Corral's"


def refuse_now(shape: Shape, room: Room) -> str | None:
    """Why this worker cannot start this shape at this moment; None if it can."""
    worker = room.worker
    reason = refuse_ever(shape, worker)
    if reason is not None:
        return reason
    if not worker.connected:
        return "it was stopped" if worker.left else "it is not connected"
    if worker.draining:
        return "it is draining"
    if room.closed:
        return room.closed
    reason = refuse_silent(shape, worker) or refuse_beside_others(shape, worker)
    if reason is not None:
        return reason
    if room.fits_now(shape) is not None:
        if room.kept_for is not None:
            return f"it is kept free for {room.kept_for}"
        return None
    free, needs = room.capacity, shape.needs
    if needs.cpus > free.cpus + SLACK:
        return f"busy: needs {counted(needs.cpus, 'CPU')}, {max(free.cpus, 0):g} free"
    if needs.memory_gb > free.memory_gb + SLACK:
        return f"busy: needs {needs.memory_gb:g} GB of memory, {max(free.memory_gb, 0):g} free"
    beside = f"; {_others(free)}" if free.others else ""
    tenths = [free.tenths[gpu.uuid] for gpu in free.gpus if suits(gpu, needs, shape.above_vram_gb)]
    such = " such" * (len(tenths) < len(free.gpus))
    if needs.gpus:
        left = f"{tenths.count(10) or 'none'}{such} free"
        return f"busy: needs {_wanted(shape)} to itself, {left}{beside}"
    of_one = f" of{such} one" if such else ""
    left = f"at most {max(tenths, default=0) / 10:g}{of_one} is free"
    return f"busy: needs {_wanted(shape)}, {left}{beside}"


def counted(count: float, noun: str) -> str:
    return f"{count:g} {noun}" if count == 1 else f"{count:g} {noun}s"
