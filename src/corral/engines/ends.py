"""What a worker tells of an attempt and its end, cut to what a runner would say: it is journaled or
kept in memory, and a worker's word, or a job's that forges its runner's, is not to be trusted."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from corral.core.assets import is_digest
from corral.core.frames import MOST_METRICS
from corral.core.job import INLINE_LIMIT, MAX_DURATION_S, Blob, Failure

CODE, TYPE, MESSAGE, TRACEBACK, PICKLED = 100, 500, 17_000, 66_000, 66_000
"""Characters, and bytes, of each; a little more than the runtime has of them."""
DOING, METRIC = 1_000, 200
"""Characters of what a job says it is doing, and of the name of a metric."""

ASTRAY_S = 366 * 24 * 3600.0


def short(failure: Failure) -> Failure:
    """The same, where it is no longer than any that a runner makes."""
    if (
        len(failure.code) <= CODE
        and len(failure.type) <= TYPE
        and len(failure.message) <= MESSAGE
        and len(failure.traceback) <= TRACEBACK
        and len(failure.pickled or b"") <= PICKLED
    ):
        return failure
    return replace(
        failure,
        code=failure.code[:CODE],
        type=failure.type[:TYPE],
        message=failure.message[:MESSAGE],
        traceback=failure.traceback[:TRACEBACK],
        pickled=failure.pickled if len(failure.pickled or b"") <= PICKLED else None,
    )


def named(metrics: dict[str, float]) -> dict[str, float]:
    """The same, where no name is longer than any that a job can give, and they are not too many."""
    if len(metrics) <= MOST_METRICS and all(len(name) <= METRIC for name in metrics):
        return metrics
    return {name[:METRIC]: value for name, value in islice(metrics.items(), MOST_METRICS)}


def took(seconds: float) -> float:
    """As long as an attempt can have taken: sums and estimates are made of it."""
    return min(max(seconds, 0.0), MAX_DURATION_S)


def moment(at: float, now: float) -> float:
    """A worker's clock goes wrong by hours, not by years, and not beyond any calendar."""
    return at if abs(at - now) < ASTRAY_S else now


def refused(result: Blob | None) -> Failure | None:
    """Why this can be nobody's result; the bytes of a large one are stored before it is told."""
    if result is None or (is_digest(result.sha256) and len(result.data or b"") <= INLINE_LIMIT):
        return None
    told = "The result came as no sha256, or with more bytes than ride along. Update the worker."
    return Failure(code="result_refused", message=told)
