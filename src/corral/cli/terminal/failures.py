"""Why jobs of a batch failed, told once for all that failed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.contract.views import JobView

FAILED = ("failed", "rejected")
SHOWN = 3
LONGEST = 300


def reasons(jobs: Iterable[JobView]) -> list[str]:
    """A line for each of the most frequent reasons, and what to do about them."""
    failed = [job for job in jobs if job.failure is not None]
    alike = Counter((job.failure.code, job.failure.message) for job in failed if job.failure)
    told = [
        f"{count} failed with {code}: {message[:LONGEST]}{'…' * (len(message) > LONGEST)}"
        for (code, message), count in alike.most_common(SHOWN)
    ]
    if len(alike) > SHOWN:
        told.append(f"There are {len(alike) - SHOWN} more reasons.")
    if failed:
        told.append(f"`corral retry {failed[0].batch}` tries them again.")
    return told
