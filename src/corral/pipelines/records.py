"""From a plan to its records: rows × config variants × variants × batches, in that nesting."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from corral.core.errors import TooManyRecords
from corral.core.images.pipeline import Record, decode_record, encode_record
from corral.core.job import Needs
from corral.pipelines.batch import Batch
from corral.pipelines.mistakes import invalid
from corral.pipelines.needs import needs_of
from corral.pipelines.plan import BatchPlan

MOST_RECORDS = 100_000
MOST_BYTES = 256 * 2**20
"""Of all records as JSON."""


class Built(Struct, frozen=True):
    """The jobs of a batch to be, without ids; `needs` and `digests` have one for each record."""

    records: tuple[Record, ...]
    needs: tuple[Needs, ...]
    digests: tuple[str, ...]
    """The `record_digest` of each."""
    seed: int
    """The batch's: with it in the plan, the same records are built again."""
    warnings: tuple[str, ...] = ()


def build(
    plan: BatchPlan,
    *,
    presets: Mapping[str, object] | None = None,
    seed: int = 0,
    most_records: int = MOST_RECORDS,
    most_bytes: int = MOST_BYTES,
) -> Built:
    """All records of a plan, or an error that says what to change. `seed` is for a plan without."""
    batch = Batch(plan, presets or {}, seed=seed, most=most_records)
    records: list[Record] = []
    digests: list[str] = []
    needs: list[Needs] = []
    known: dict[tuple[int, int, int], Needs] = {}
    size = 0
    for draft in batch.drafts():
        document = _encoded(draft)
        size += len(document)
        if size > most_bytes:
            raise TooManyRecords(
                f"The records are larger than {most_bytes:,} bytes together. Split the plan.",
                details={"limit": most_bytes},
            )
        record = _checked(document, draft)
        alike = (record.config_index, record.variant_index, len(record.loras))
        if alike not in known:
            known[alike] = needs_of(record, plan.needs)
        needs.append(known[alike])
        digests.append(hashlib.sha256(document).hexdigest())
        records.append(record)
    return Built(
        records=tuple(records),
        needs=tuple(needs),
        digests=tuple(digests),
        seed=batch.seed,
        warnings=tuple(batch.warnings),
    )


def _encoded(draft: Record) -> bytes:
    try:
        return encode_record(draft)
    except UnicodeEncodeError as error:
        raise invalid("", f"row {draft.row} has text that is no Unicode: {error.reason}.") from (
            error
        )


def _checked(document: bytes, draft: Record) -> Record:
    """What a worker will read, so what it would refuse is refused here."""
    try:
        return decode_record(document)
    except msgspec.ValidationError as error:
        raise invalid(
            "", f"row {draft.row}, variant {draft.variant_index} cannot be rendered: {error}."
        ) from error
