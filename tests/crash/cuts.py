"""Records the scenario once, cuts its power at every sync, and starts from each disk that is left.

A program of its own for the same reason as `sweep`: `python -m tests.crash.cuts FOLDER PART PARTS
SEEDS [STORY]`. The cut comes just before a sync takes effect: most was said by then, least is safe.
It prints one JSON object for each different disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash import painting, power, scenario, tracing, worker_disk
from tests.crash.power import Left
from tests.crash.sweep import apart

Story = Callable[[Path], None]
Check = Callable[[Path, Sequence[str]], Coroutine[Any, Any, object]]
STORIES: dict[str, tuple[Story, Check]] = {
    "controller": (partial(scenario.run, bulky=True), scenario.check),
    "learning": (painting.run, painting.check),
    "worker": (worker_disk.run, worker_disk.check),
}


def recorded(root: Path, story: Callable[[Path], None]) -> list[power.Op]:
    reading, writing = os.pipe()
    own = os.stat(writing).st_ino

    def program() -> None:
        os.dup2(writing, 1)
        story(root / "home")

    def voice(call: tracing.Call) -> bool:
        return call.path(call.args[0]) == f"pipe:[{own}]"

    recorder = power.Recorder(root, voice)
    status = tracing.watch(program, recorder.entered, recorder.left)
    os.close(reading)
    os.close(writing)
    assert status == 0, f"the scenario ended with status {status}"
    return recorder.ops


def cuts(root: Path, ops: Sequence[power.Op], seeds: int) -> Iterator[tuple[int, str, Left, int]]:
    """(sync, variant, disk, how much was said) for every sync and for the end."""
    disk = power.Disk(root)
    syncs = said = 0
    for op in [*ops, power.Op("sync")]:
        if op.kind == "said":
            said += 1
            continue
        if op.kind in ("sync", "syncfs"):
            syncs += 1
            yield syncs, "lost", disk.after_cut(), said
            for seed in range(seeds):
                dice = random.Random(f"{syncs}.{seed}")
                yield syncs, f"torn {seed}", disk.after_cut(dice), said
        if op.path:
            disk.play(op)


def main(arguments: Sequence[str]) -> None:
    folder, part, parts, seeds, *what = arguments
    run, check = STORIES[what[0] if what else "controller"]
    scenario.quiet()
    root = Path(folder)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    ops = recorded(root, run)
    said = [op.data.decode().strip() for op in ops if op.kind == "said"]
    # Of equal disks the one after which most was said asks for most.
    disks: dict[str, tuple[int, str, int]] = {}
    for sync, variant, left, count in cuts(root, ops, int(seeds)):
        disks[power.digest(left)] = (sync, variant, count)
    wanted = dict(list(disks.items())[int(part) :: int(parts)])
    for sync, variant, left, _ in cuts(root, ops, int(seeds)):
        found = wanted.pop(power.digest(left), None)
        if found is None:
            continue
        shutil.rmtree(root)
        root.mkdir()
        power.write(left, root)
        wrong = apart(partial(asyncio.run, check(root / "home", said[: found[2]])))
        told = {"sync": sync, "variant": variant, "said": said[: found[2]], "wrong": wrong}
        print(json.dumps(told), flush=True)
    shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1:])
