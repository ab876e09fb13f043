"""What the images of a record are called."""

from __future__ import annotations

from string import Formatter

from corral import job as jobs
from corral.core.images.pipeline import Record
from corral.runtime.failures import AttemptFailed

INDEX = "-{index:03}"


def names(record: Record, job: str, count: int) -> list[str]:
    """By the record's template, without an ending, and each name once."""
    found: list[str] = []
    for index in range(count):
        known: dict[str, object] = {"job": job, "index": index}
        try:
            name = _filled(record.output, known)
            if name in found:
                name += INDEX.format(index=index)
            found.append(jobs._artifact_name(name))
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
