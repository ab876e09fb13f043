"""Which job a person means, by as much of its id as they give."""

from __future__ import annotations

import asyncio

from corral.controller.store import Store
from corral.core.errors import JobNotFound
from corral.core.job import JobId

SLICE = 500
"""How many living jobs are looked at before others get their turn."""


async def find(store: Store, text: str) -> JobId:
    """The job an id, or an unambiguous beginning of one, or `last` means."""
    if not (text.isascii() and text.isalnum()):
        raise JobNotFound(f"{text[:80]!r} is no job's id. `corral jobs --all` lists them.")
    world = store.world
    if text in world.heads or store.journal.ended(text) is not None:
        return text
    if text == "last":
        newest = max(next(reversed(world.heads), ""), store.journal.ended_newest() or "")
        if not newest:
            raise JobNotFound("There is no job yet. Submit one with `corral run`.")
        return newest
    found: set[JobId] = set()
    if len(text) >= 3:
        found = await _living_by_prefix(store, text)
        found |= set(store.journal.ended_by_prefix(text))
    if len(found) == 1:
        return found.pop()
    if found:
        raise JobNotFound(f"More than one job begins with {text[:80]}; give more of its id.")
    raise JobNotFound(
        f"There is no job {text[:80]}. `corral jobs --all` lists them.", job_id=text[:80]
    )


async def _living_by_prefix(store: Store, prefix: str) -> set[JobId]:
    """A few of the living whose ids begin so, enough to see that one is not alone."""
    found: set[JobId] = set()
    living = list(store.world.heads)
    for start in range(0, len(living), SLICE):
        some = living[start : start + SLICE]
        found.update(job for job in some if job.startswith(prefix))
        if len(found) > 1:
            break
        await asyncio.sleep(0)
    return found
