"""Gives the folders of a home back to their owner where a job has shut them: see `permissions`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from corral.home import KeptFolder
from corral.permissions import restore_tree

log = structlog.get_logger("corral.reopening")

EVERY_S = 5.0
MOST_NAMED = 5


def reopen(kept: Sequence[KeptFolder]) -> list[str]:
    """What was shut."""
    opened = [path for one in kept for path in restore_tree(str(one.folder), one.depth, one.files)]
    if opened:
        log.warning("was_shut_by_a_job", count=len(opened), opened_again=opened[:MOST_NAMED])
    return opened


async def keep_open(kept: Sequence[KeptFolder]) -> None:
    while True:
        await asyncio.to_thread(reopen, kept)
        await asyncio.sleep(EVERY_S)
