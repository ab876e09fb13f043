"""From a plan to a batch of image jobs: built beside the event loop, submitted in slices.

Whatever is drawn is drawn from the key, so the same key gives the same batch, seeds and all: a
submission that was interrupted is simply made again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from corral import pipelines
from corral.controller.images.paces import Paces
from corral.controller.images.presets import PresetFiles
from corral.controller.images.unknown_names import unknown_names
from corral.controller.jobs.admission import admit
from corral.controller.jobs.batches import slots
from corral.controller.loop import Loop
from corral.controller.queue import Queue
from corral.core.access import Caller, Role
from corral.core.assets import check_input_names
from corral.core.errors import Conflict, InvalidPlan, InvalidRequest
from corral.core.images.pipeline import Record, spelled_out, task_of
from corral.core.job import Input, Job, Needs, PipelineCall, Size
from corral.core.lifecycle import shape_of
from corral.core.malformed import MALFORMED, check_size
from corral.core.text import is_digest
from corral.core.worker import Worker
from corral.pipelines.mistakes import convert, invalid
from corral.runtime.files.models import model_name

log = structlog.get_logger()

T = TypeVar("T")

SLICE = 500
"""So many jobs share a commit; others get their turn in between."""
RETRIES = 2
MAX_KEY = 400
MOST_FILES = 10_000
NAMELESS = "images"
NOBODY = Caller("", Role.READ)


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """An asset, under the name that `inputs` of a plan has for it."""

    sha256: str = ""
    size: Size = 0
    path: str = ""


class BuiltBatch(Struct, frozen=True):
    batch: str
    """What it is called once it is submitted."""
    jobs: tuple[Job, ...]
    alike: dict[Needs, list[Job]]
    """The same jobs by what they need."""
    warnings: list[str]
    estimate_s: float | None = None

    @property
    def records(self) -> Iterable[dict[str, Any]]:
        return (shown(job.work.record) for job in self.jobs if isinstance(job.work, PipelineCall))


class Plans:
    def __init__(self, queue: Queue, loop: Loop, paces: Paces, presets: PresetFiles) -> None:
        self._queue, self._loop, self._paces = queue, loop, paces
        self.presets = presets
        self._one = asyncio.Lock()
        """A large plan keeps a processor busy for seconds; two at once would help nobody."""

    async def build(self, plan: bytes, key: str = "", caller: Caller = NOBODY) -> BuiltBatch:
        """What a plan means, and for about how long; nothing is submitted yet."""
        key = key or secrets.token_hex(16)
        if len(key) > MAX_KEY or not key.isprintable():
            raise InvalidRequest(f"A key has up to {MAX_KEY} printable characters.")
        async with self._one:
            built = await asyncio.to_thread(self._made, plan, key, caller)
            unknown = await asyncio.to_thread(_unknown, built, self._loop.workers())
            built = replace(built, warnings=[*built.warnings, *unknown])
            estimate_s = await asyncio.to_thread(self._estimate, built, self._loop.workers())
        return replace(built, estimate_s=estimate_s)

    async def submit(self, built: BuiltBatch) -> BuiltBatch:
        """All of it, durable when this returns. Whoever goes away meanwhile has submitted it."""
        return await self._queue.to_the_end(self._submit(built))

    async def _submit(self, built: BuiltBatch) -> BuiltBatch:
        self._queue.check_room()
        await self._refuse_all_or_none(built)
        told = dict.fromkeys(built.warnings)
        with self._queue.growing(built.batch) as cancelled:
            for some in _slices(built.jobs):
                accepted = await self._queue.submit(some)
                told.update(dict.fromkeys(one.warning for one in accepted if one.warning))
                await asyncio.sleep(0)
                if cancelled.is_set():
                    await self._queue.cancel_batch(built.batch)  # what came in since
                    raise Conflict(
                        f"The batch {built.batch} was cancelled while it was submitted. Submit the "
                        "plan under another key."
                    )
        log.info("batch_submitted", batch=built.batch, jobs=len(built.jobs))
        return replace(built, warnings=list(told))

    async def _refuse_all_or_none(self, built: BuiltBatch) -> None:
        """Where one would be refused none is accepted; that one stays in the history."""
        workers = self._loop.workers()
        for first, *_ in built.alike.values():
            if admit(first, workers)[1] is not None:
                await self._queue.submit([first])

    def _made(self, data: bytes, key: str, caller: Caller) -> BuiltBatch:
        """On a thread of its own."""
        value = from_json(data, "The plan")
        if not isinstance(value, dict):
            pipelines.parse(value)  # says what a plan is
        files = _files(value.pop("files", None))
        plan = pipelines.parse(value)
        if not plan.name.isprintable():
            raise invalid("name", "it holds characters that cannot be printed.")
        digest = hashlib.sha256(key.encode()).hexdigest()
        presets: dict[str, object] = dict(self.presets.names()) if plan.preset else {}
        if plan.preset in presets:  # of the others only the names are told
            presets[plan.preset] = self.presets.get(plan.preset).value
        built = pipelines.build(plan, presets=presets, seed=int(digest[:8], 16))
        name, settled = plan.name or NAMELESS, dict[tuple[Needs, str], Needs]()
        batch, user = f"{name}-{digest[:8]}", caller.user("")
        jobs: list[Job] = []
        alike: dict[Needs, list[Job]] = {}
        for number, (record, asked) in enumerate(zip(built.records, built.needs, strict=True)):
            needs = _settled(asked, record, settled)
            job = Job(
                work=PipelineCall(record),
                needs=needs,
                name=name,
                labels=_labels(record),
                queue_class=plan.queue_class,
                priority=plan.priority,
                duration_s=plan.duration_s,
                retries=RETRIES,
                batch=batch,
                user=user,
                key=f"batch:{key}/{number}",
                inputs=_inputs(record, files),
            )
            jobs.append(job)
            alike.setdefault(needs, []).append(job)
        return BuiltBatch(batch, tuple(jobs), alike, list(built.warnings))

    def _estimate(self, built: BuiltBatch, workers: Sequence[Worker]) -> float | None:
        """About how long all of it takes, if nothing else ran; None where one of its kind was
        never made here, or nobody is there to make it."""
        total = 0.0
        for jobs in built.alike.values():
            together = min(slots(shape_of(jobs[0]), workers), len(jobs))
            if not together:
                return None
            for job in jobs:
                assert isinstance(job.work, PipelineCall)
                seconds = self._paces.seconds(job.work.record)
                if seconds is None:
                    return None
                total += seconds / together
        return total

    async def lines(self, built: BuiltBatch) -> AsyncIterator[bytes]:
        """Records as JSON, one a line, many at a time."""
        for some in _slices(built.records):
            yield b"".join(msgspec.json.encode(one) + b"\n" for one in some)
            await asyncio.sleep(0)


def _unknown(built: BuiltBatch, workers: Sequence[Worker]) -> list[str]:
    return unknown_names(
        (
            (job.work.record, job.needs.models)
            for job in built.jobs
            if isinstance(job.work, PipelineCall)
        ),
        workers,
    )


def _settled(needs: Needs, record: Record, alike: dict[tuple[Needs, str], Needs]) -> Needs:
    """With models as workers call them, and what a backend must be able to do; the same object
    for the same needs, which the scheduler is quicker with."""
    asked = (needs, task_of(record))
    if asked not in alike:
        models = tuple(sorted({model_name(one) for one in needs.models}))
        alike[asked] = replace(needs, models=models, task=asked[1])
    return alike[asked]


def _inputs(record: Record, files: dict[str, Input]) -> tuple[Input, ...]:
    missing = [one for one in record.inputs if one not in files]
    if missing:
        raise invalid(
            "inputs",
            f"there is no image {missing[0]!r}. Write the path of a file beside the plan, or "
            "`photos/*.png` for many; or put it with `corral put` and say so under `files`.",
        )
    return tuple(sorted((files[one] for one in record.inputs), key=lambda one: one.name))


def _labels(record: Record) -> dict[str, str]:
    labels = {"pack": record.pack, "row": str(record.row), "model": record.model}
    return {key: _printable(value) for key, value in labels.items() if value}


def _slices(values: Iterable[T]) -> Iterator[list[T]]:
    left = iter(values)
    while some := list(islice(left, SLICE)):
        yield some


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def from_json(data: bytes, what: str) -> Any:
    try:
        check_size(data)
        return msgspec.json.decode(data)
    except (ValueError, *MALFORMED) as error:
        raise InvalidPlan(f"{what} is no JSON: {error}.", details={"path": ""}) from None


def _files(value: object) -> dict[str, Input]:
    if value is None:
        return {}
    files = convert(value, dict[str, File], where="files")
    if len(files) > MOST_FILES:
        raise invalid("files", f"{len(files):,} are more than {MOST_FILES:,}. Split the plan.")
    check_input_names(files)
    for name, one in files.items():
        if not (is_digest(one.sha256) if one.sha256 else one.path):
            raise invalid("files", f"{name!r} needs the sha256 of an asset.")
    return {
        name: Input(name=name, sha256=one.sha256, size=one.size, path=one.path)
        for name, one in files.items()
    }


def shown(record: Record) -> dict[str, Any]:
    """A record as a person reads it: with what is as usual, too."""
    found: dict[str, Any] = spelled_out(record)
    if not record.job_id:
        del found["job_id"]
    return found
