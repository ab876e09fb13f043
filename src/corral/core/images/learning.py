"""What is learned from an image job: one line for each that was rendered, and one for each rating.

The lines outlive the jobs that they tell of, so each says everything by itself: defaults are
spelled out, and workers are called by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from corral.core.errors import InvalidRequest
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.images.pipeline import LearningStep, Record, digest_of, spelled_out
from corral.core.job import PipelineCall, decode_document
from corral.core.malformed import MALFORMED

LONGEST_LINE = 1 << 20
"""Bytes of a line. A record that would make it longer is left out of it; its digest stays."""
LONGEST_RESULT = 4 << 20
"""Bytes of a result that are read: an honest one has some hundred for each image."""
LONGEST_NOTE = 2000
WARNINGS, LONGEST_WARNING = 20, 500
BEST = 5

Text = Annotated[str, Meta(max_length=512)]
Seconds = Annotated[float, Meta(ge=0)]


class Image(Struct, frozen=True, gc=False):
    name: Text
    pixel_sha256: Text = ""
    file_sha256: Text = ""
    size: tuple[int, int] = (0, 0)
    """Width and height."""
    seed: int | None = None


class StageRun(Struct, frozen=True, gc=False):
    """How long a stage took: the backend by its own word, and the slot that it held."""

    stage: Text
    backend: Text = ""
    seconds: Seconds = 0.0
    slot_seconds: Seconds = 0.0


class Rendering(Struct, frozen=True):
    """The result of an image job, as far as it is learned from."""

    images: Annotated[tuple[Image, ...], Meta(max_length=512)] = ()
    stages: Annotated[tuple[StageRun, ...], Meta(max_length=64)] = ()
    backend: Text = ""
    warnings: tuple[str, ...] = ()


class LearningRecord(Struct, frozen=True, kw_only=True):
    """One line of `records.jsonl`."""

    job_id: str
    """First in its line, so that a job is found without reading all of it."""
    batch: str
    name: str
    user: str
    labels: dict[str, str]
    worker: str
    backend: str
    attempt: int
    submitted_at: float
    started_at: float
    ended_at: float
    seconds: float
    stages: tuple[StageRun, ...]
    seeds: tuple[int, ...]
    images: tuple[Image, ...]
    warnings: tuple[str, ...]
    record_digest: str
    learning: dict[str, Any]
    """Which learning run it is a step of, if any."""
    record: dict[str, Any] | None
    """All that decided its pixels, with every default; null where the line would be too long."""


class Rating(Struct, frozen=True):
    """One line of `ratings.jsonl`; of several for one job the last one counts."""

    job_id: str
    rating: Annotated[int, Meta(ge=1, le=BEST)]
    note: Annotated[str, Meta(max_length=LONGEST_NOTE)]
    by: str
    """The name of the token that it came with; empty for the home's own."""
    at: float


_encode = msgspec.json.Encoder().encode
_rendering = msgspec.json.Decoder(Rendering).decode
_rating = msgspec.json.Decoder(Rating).decode


def learned(
    facts: Iterable[Journaled], document: bytes, result: bytes, names: Mapping[str, str]
) -> LearningRecord | None:
    """What a job's facts, up to its success, and its result say; None for another kind of job."""
    job = decode_document(document)
    if not isinstance(job.work, PipelineCall):
        return None
    record, worker, started_at, artifacts = job.work.record, "", 0.0, dict[str, ArtifactStored]()
    submitted: JobSubmitted | None = None
    succeeded: JobSucceeded | None = None
    for fact in facts:
        match fact:
            case JobSubmitted():
                submitted = fact
            case AttemptPlaced():
                worker, started_at = fact.worker, 0.0
                artifacts.clear()
            case AttemptStarted():
                started_at = fact.at
            case ArtifactStored():
                artifacts[fact.name] = fact
            case JobSucceeded():
                succeeded = fact
    assert submitted is not None, "a job begins with its submission"
    assert succeeded is not None, "only what succeeded is learned from"
    rendering = _rendered(result, artifacts.values())
    return LearningRecord(
        job_id=submitted.job,
        batch=submitted.batch,
        name=submitted.name,
        user=submitted.user,
        labels=dict(submitted.labels),
        worker=names.get(worker, worker),
        backend=rendering.backend,
        attempt=succeeded.attempt,
        submitted_at=submitted.at,
        started_at=started_at,
        ended_at=succeeded.at,
        seconds=succeeded.seconds,
        stages=rendering.stages,
        seeds=_seeds(record, rendering),
        images=rendering.images,
        warnings=tuple(one[:LONGEST_WARNING] for one in rendering.warnings[:WARNINGS]),
        record_digest=digest_of(record),
        learning=spelled_out(record.learning),
        record=spelled_out(record),
    )


def line_of(record: LearningRecord) -> bytes:
    line = _encode(record)
    if len(line) > LONGEST_LINE:
        line = _encode(msgspec.structs.replace(record, record=None))
    if len(line) > LONGEST_LINE:
        # No record is to blame for so much: a worker says more of its images than there is.
        told = ("Its result says too much to be kept.",)
        bare = msgspec.structs.replace(
            record, record=None, images=(), seeds=(), stages=(), backend="", warnings=told
        )
        line = _encode(bare)
    return line + b"\n"


def _rendered(result: bytes, artifacts: Iterable[ArtifactStored]) -> Rendering:
    """A worker's word, or what was stored where that is not understood."""
    try:
        return _rendering(result)
    except MALFORMED as error:
        images = [
            Image(name=one.name[:512], file_sha256=one.file_sha256)
            for one in artifacts
            if one.name.endswith(".png")
        ]
        told = f"Its result says nothing that can be learned ({error})."
        return Rendering(images=tuple(images[:512]), warnings=(told,))


def _seeds(record: Record, rendering: Rendering) -> tuple[int, ...]:
    """As rendered; as asked for where the worker does not say."""
    told = tuple(image.seed for image in rendering.images if image.seed is not None)
    return told or tuple(record.seed + number for number in range(record.batch_size))


def rated(job_id: str, rating: int, note: str, by: str, at: float) -> Rating:
    if not 1 <= rating <= BEST:
        raise InvalidRequest(f"A rating is a whole number from 1 to {BEST}; got {rating}.")
    if len(note) > LONGEST_NOTE:
        raise InvalidRequest(
            f"A note has at most {LONGEST_NOTE:,} characters; this one has {len(note):,}."
        )
    return Rating(job_id, rating, note, by, at)


def rating_line(rating: Rating) -> bytes:
    return _encode(rating) + b"\n"


def read_rating(line: bytes) -> Rating | None:
    try:
        return _rating(line)
    except MALFORMED:
        return None


class Brief(Struct, frozen=True, gc=False):
    """What a line is chosen by, and what whoever reads it relies on."""

    job_id: str
    ended_at: float
    batch: str
    learning: LearningStep
    worker: str
    seconds: float
    stages: Raw
    images: Raw
    record: Raw


_brief = msgspec.json.Decoder(Brief).decode


def read_brief(line: bytes) -> Brief | None:
    """None where the line is torn or damaged."""
    try:
        line.decode()  # msgspec does not look whether what it passes over is UTF-8
        return _brief(line)
    except MALFORMED:
        return None


def joined(line: bytes, rating: Rating | None) -> bytes:
    """A line as it is exported: with its rating, or null."""
    told = b"null"
    if rating is not None:
        shown = {"rating": rating.rating, "note": rating.note, "by": rating.by, "at": rating.at}
        told = _encode(shown)
    return line.rstrip()[:-1] + b',"rating":' + told + b"}\n"
