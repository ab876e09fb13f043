"""A controller's learning as a story that crash tests interrupt everywhere, and what must be true
afterwards: one line for each image job that succeeded, and every rating that was acknowledged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from corral.core.events import JobSucceeded
from tests.controller.paintings import studio
from tests.crash.scenario import quiet

Say = Callable[[str], object]
"""An acknowledgement leaves the controller."""


async def play(home: Path, say: Say) -> None:
    """Two lives in which images are made, alone and together, and rated."""
    for _ in range(2):
        async with studio(home) as made:
            jobs = [await made.paint()]
            await made.learnings.caught_up()
            jobs += [await made.paint() for _ in range(2)]
            await made.compute()
            await made.learnings.caught_up()
            for number, job in enumerate(jobs, 1):
                rating = await made.learnings.rate(job, number)
                say(f"RATED {rating.job_id} {rating.rating}\n")


def run(home: Path) -> None:
    """The story as a program: acknowledgements go to stdout, one write each."""
    quiet()
    asyncio.run(play(home, lambda line: os.write(1, line.encode())))


async def check(home: Path, said: Sequence[str]) -> None:
    async with studio(home) as made:
        await made.paint()
        await made.learnings.caught_up()
        ends = [
            record.job
            for record in made.store.journal.scan()
            if isinstance(record.fact(), JobSucceeded) and made.is_image(record.job)
        ]
        assert made.learned() == ends, f"{made.learned()} of {ends}"
        lines = {line["job_id"]: line for line in await made.exported()}
        for _, job, rating in map(str.split, said):
            assert lines[job]["rating"]["rating"] == int(rating), "an acknowledged rating is lost"
