"""One record, stage by stage, with checkpoints between; at the end images, cards and a result."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any

import msgspec
import PIL
from msgspec import Struct
from PIL import UnidentifiedImageError
from PIL.Image import Image

from corral import __version__, job
from corral.core.images.backends import SERVERS
from corral.core.images.pipeline import Record, Stage, Txt2Img, digest_of, spelled_out, stage_name
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.transfer import Transfer, TransferRefused
from corral.runtime.pipeline import checkpoints, images
from corral.runtime.pipeline.backend import Backend, Rendered, StageFailed, seed_of
from corral.runtime.pipeline.checkpoints import MOST_IMAGES, Done, StageReport
from corral.runtime.pipeline.kinds import choices, open_backend

if TYPE_CHECKING:
    from corral.runtime.order import Document, Order, PipelineWork, Renderer

SILENT = ("backend_down", "backend_silent")
ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What an answer of an unexpected form raises, wherever it is looked at."""
PROGRESS_S = 0.05
"""Of progress told more often than that, some is left out."""


class Card(Struct):
    """Beside each image: all that is needed to render it again and to compare the pixels."""

    name: str
    index: int
    job: str
    attempt: int
    record: dict[str, Any]
    """With every default, so that it is read without knowing any."""
    record_digest: str
    seed: int
    size: tuple[int, int]
    pixel_sha256: str
    file_sha256: str
    backend: str
    models: dict[str, str]
    """Hashes of what the backend really used, by name."""
    worker: str
    driver: str
    software: dict[str, str]
    stages: list[StageReport]
    warnings: list[str] = []
    info: dict[str, Any] = {}
    """What else the backend said of itself."""


class Made(Struct, frozen=True):
    """One image of a result."""

    name: str
    pixel_sha256: str
    file_sha256: str
    size: tuple[int, int]
    seed: int


class PipelineOutcome(Struct, frozen=True):
    """The result of a pipeline job. It is JSON: nobody has to trust a worker to read it."""

    images: list[Made]
    stages: list[StageReport]
    backend: str
    warnings: list[str]
    record_digest: str


class Pipelines:
    """Runs records in a warm process. Its backends stay open from one to the next."""

    def __init__(self) -> None:
        self._open: dict[bytes, Backend] = {}

    def run(
        self,
        work: PipelineWork,
        order: Order[Document],
        transfer: Callable[[], Transfer],
        started: Callable[[], None],
    ) -> bytes:
        try:
            record = msgspec.convert(work["record"], Record)
        except msgspec.ValidationError as error:
            raise AttemptFailed("bad_job", f"The record cannot be read here: {error}.") from error
        digest = digest_of(record)
        renderer = order["renderer"]
        done, made = checkpoints.load(order.get("checkpoint", ""), digest, transfer)
        if not made or not choices(record, renderer["backends"], done.backend):
            done = Done(digest)
            made = _inputs(record, f"{order['work_dir']}{os.sep}work")
        started()
        made = self._stages(record, renderer["backends"], done, made, transfer)
        outcome = PipelineOutcome(
            images=_keep(record, order, renderer, done, made, transfer),
            stages=done.stages,
            backend=done.backend,
            warnings=done.warnings,
            record_digest=digest,
        )
        return msgspec.json.encode(outcome)

    def _stages(
        self,
        record: Record,
        backends: list[dict[str, Any]],
        done: Done,
        made: list[Image],
        transfer: Callable[[], Transfer],
    ) -> list[Image]:
        begun = len(done.stages)
        for place in range(begun, len(record.stages)):
            stage = record.stages[place]
            if place > begun:
                checkpoints.save(done, made, transfer)
            tell = StageReporter(place, len(record.stages), stage_name(stage))
            began = time.perf_counter()
            try:
                name, rendered = self._render(stage, record, backends, done.backend, made, tell)
            except StageFailed as error:
                _measure(tell.stage, place, time.perf_counter() - began, failed=1)
                said = f"{tell.stage}: {error.message}"
                raise AttemptFailed(error.code, said, type=tell.backend) from error
            made = [images.plain(image) for image in rendered.images]
            taken = time.perf_counter() - began
            report = StageReport(
                stage=tell.stage,
                backend=name,
                seconds=round(own_seconds(rendered.seconds, taken), 6),
                slot_seconds=round(taken, 6),
                loaded=rendered.loaded,
            )
            _measure(
                tell.stage,
                place,
                report.slot_seconds,
                seconds=report.seconds,
                model_loads=int(report.loaded),
            )
            _note(done, report, rendered, record, len(made))
        job.progress(1.0, f"{done.stages[-1].stage}: done")  # whatever was thinned out
        return made

    def _render(
        self,
        stage: Stage,
        record: Record,
        backends: list[dict[str, Any]],
        begun_with: str,
        made: list[Image],
        tell: StageReporter,
    ) -> tuple[str, Rendered]:
        """By the first backend that has what the stage needs. A chain stays with the kind that
        began it, on whichever worker; where there is none of it, the chain begins anew."""
        lacking: list[tuple[str, StageFailed]] = []
        for options in choices(record, backends, begun_with):
            backend = self._opened(options)
            tell.backend = backend.name
            try:
                rendered = backend.render(stage, record, made, tell)
            except StageFailed as error:
                if error.code not in ("model_missing", "stage_missing", *SILENT):
                    raise
                lacking.append((backend.name, error))
                continue
            except ODD as error:
                if options["type"] not in SERVERS:  # somebody else's may answer with anything
                    raise
                said = f"{type(error).__name__}: {error}"
                raise StageFailed(
                    "backend_mismatch",
                    f"{backend.name} at {options.get('url', '?')} answers as no such server does "
                    f"({said[:200]}). See what else listens there.",
                ) from error
            if not rendered.images:
                raise StageFailed("backend_mismatch", f"{backend.name} gave no image back.")
            if len(rendered.images) > MOST_IMAGES:
                count = len(rendered.images)
                raise StageFailed("backend_mismatch", f"{backend.name} gave {count} images back.")
            silent = [one.message for _, one in lacking if one.code in SILENT]
            rendered.warnings = [*silent, *rendered.warnings]
            return backend.name, rendered
        if lacking:  # one that is down may have it; else the one counts that its owner prefers
            lacking.sort(key=lambda one: (*SILENT, one[1].code).index(one[1].code))
            tell.backend, first = lacking[0]
            raise StageFailed(first.code, " ".join(one.message for _, one in lacking))
        wanted = begun_with or record.backend or "real"
        raise StageFailed("stage_missing", f"This worker has no {wanted} backend for the record.")

    def _opened(self, options: dict[str, Any]) -> Backend:
        key = msgspec.json.encode(options)
        if key not in self._open:
            self._open[key] = open_backend(options)
        return self._open[key]


class StageReporter:
    """A stage's way back: its progress as a part of the whole job's."""

    def __init__(self, place: int, count: int, stage: str) -> None:
        self.stage = stage
        self.backend = ""
        self._place, self._count = place, count
        self._next = 0.0

    def progress(self, fraction: float, message: str = "") -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_S
        said = f"{self.stage}: {message}" if message else self.stage
        job.progress((self._place + min(max(fraction, 0.0), 1.0)) / self._count, said)

    def cancelled(self) -> bool:
        return job.cancelled()


def own_seconds(told: float, taken: float) -> float:
    """A backend's word on its own time, which is within ours. A server's clock says anything.

    >>> own_seconds(float("inf"), 2.0), own_seconds(float("nan"), 2.0), own_seconds(-1.0, 2.0)
    (2.0, 0.0, 0.0)
    """
    return min(max(0.0, told), taken)


def _measure(stage: str, place: int, slot_seconds: float, **values: float) -> None:
    """Told at once: a job that fails later keeps what its stages took."""
    named = {"slot_seconds": slot_seconds, **values}
    job.metric({f"{stage}.{name}": value for name, value in named.items()}, step=place)


def _note(done: Done, report: StageReport, rendered: Rendered, record: Record, count: int) -> None:
    done.stages.append(report)
    done.backend = report.backend
    done.warnings += rendered.warnings
    if rendered.seeds or not done.seeds:
        done.seeds = list(rendered.seeds) or [seed_of(record, n) for n in range(count)]
    for name, value in rendered.info.items():
        known = done.info.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            value = {**known, **value}
        done.info[name] = value


def _inputs(record: Record, folder: str) -> list[Image]:
    """The images that a chain begins with."""
    if isinstance(record.stages[0], Txt2Img):
        return []
    found = []
    for name in record.inputs:
        try:
            with open(os.path.join(folder, *name.split("/")), "rb") as file:
                found.append(images.from_bytes(file.read()))
        except UnidentifiedImageError as error:
            said = f"The input {name!r} is no image that Pillow knows."
            raise AttemptFailed("bad_job", said) from error
        except (OSError, ValueError) as error:
            said = f"The input {name!r} cannot be read: {error}."
            raise AttemptFailed("bad_job", said) from error
    if not found:
        first = stage_name(record.stages[0])
        raise AttemptFailed("bad_job", f"The chain begins with {first} and has no input image.")
    return found


def _keep(
    record: Record,
    order: Order[Document],
    renderer: Renderer,
    done: Done,
    made: list[Image],
    transfer: Callable[[], Transfer],
) -> list[Made]:
    info = dict(done.info)
    models, versions = info.pop("models", {}), info.pop("versions", {})
    driver = info.pop("driver", "") or renderer["driver"]
    software = {
        "corral": __version__,
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        **{str(name): str(version) for name, version in versions.items()},
    }
    whole = spelled_out(record)
    said = msgspec.json.encode(whole).decode()
    text = {images.RECORD: said, images.DIGEST: done.record_digest}
    names = _names(record, order["job"], len(made))
    kept, files = [], []
    for index, image in enumerate(made):
        seed = done.seeds[index] if index < len(done.seeds) else seed_of(record, index)
        png = images.to_png(image, text)
        card = Card(
            name=f"{names[index]}.png",
            index=index,
            job=order["job"],
            attempt=order["attempt"],
            record=whole,
            record_digest=done.record_digest,
            seed=seed,
            size=image.size,
            pixel_sha256=images.pixel_sha256(image),
            file_sha256=hashlib.sha256(png).hexdigest(),
            backend=done.backend,
            models=models,
            worker=renderer["worker"],
            driver=driver,
            software=software,
            stages=done.stages,
            warnings=done.warnings,
            info=info,
        )
        encoded = msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n"
        files += [(card.name, png), (f"{names[index]}.json", encoded)]
        kept.append(Made(card.name, card.pixel_sha256, card.file_sha256, card.size, seed))
    try:
        stored = transfer().put_artifacts(files)
    except TransferRefused as error:
        raise AttemptFailed("result_refused", str(error)) from error
    for (name, _), (sha256, size) in zip(files, stored, strict=True):
        job._say("artifact", name=name, size=size, file_sha256=sha256)
    return kept


def _names(record: Record, job_id: str, count: int) -> list[str]:
    """By the record's template, without an ending, and each name once."""
    found: list[str] = []
    for index in range(count):
        known: dict[str, object] = {"job": job_id, "index": index}
        try:
            name = _filled(record.output, known)
            if name in found:
                name += f"-{index:03}"
            found.append(job._artifact_name(name))
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise AttemptFailed(
                "bad_job",
                f"The output template {record.output!r} gives no file name: {error}. It may hold "
                f"{', '.join(f'{{{word}}}' for word in known)}.",
            ) from error
    return found


def _filled(template: str, known: dict[str, object]) -> str:
    """Names of fields alone: nothing that looks into a value."""
    parts = []
    for text, field, spec, conversion in Formatter().parse(template):
        parts.append(text)
        if field is not None:
            if field not in known or conversion or "{" in (spec or ""):
                raise ValueError(f"{field!r} is not known")
            parts.append(format(known[field], spec or ""))
    return "".join(parts)
