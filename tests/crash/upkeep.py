"""Kills upkeep (pruning, restore, repair, learning) at each system call that changes a file, and
checks what is left.

A program of its own, `python -m tests.crash.upkeep WHAT FOLDER`, like `sweep`: it forks for each
call, and prints one JSON object for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.controller.history.retention import DAY_S, Retention
from corral.controller.journal.database import Journal
from corral.controller.recovery import restore
from corral.controller.recovery.backup import Backups
from corral.controller.recovery.repair import repair
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.job import Head, Needs, decode_document
from corral.home import Home
from tests.controller.test_pruning import damage
from tests.controller.test_retention import KEEP
from tests.crash import books, painting, scenario, tracing
from tests.crash.sweep import Counter, apart

Part = Callable[[Path], None]


async def _prepare_restore(home: Path) -> None:
    """A home that went on after its backup, and everything ready to go back."""
    file = home.with_suffix(".tar")
    async with scenario.station(home) as life:
        [waiting] = await life.submit(scenario.function_job("waiting", needs=Needs(gpus=1)))
        await life.submit(scenario.function_job("done", b"z" * 20_000))
        await life.until_ended(but=[waiting])
        retention = Retention(life.store, life.blobs, life.spool, KEEP)
        pieces = [piece.data async for piece in Backups(life.home, retention, "test").stream()]
        file.write_bytes(b"".join(pieces))
        await life.submit(scenario.function_job("later"))
        await life.until_ended(but=[waiting])
    (home / "corral.yaml").write_text("aging_s: 61")
    restore.commit(Home(home), restore.prepare(Home(home), file)[0])


def swap(home: Path) -> None:
    place = Home(home)
    place.take()
    restore.swap_in(place)
    place.release()


def swapped(home: Path) -> None:
    if restore.pending(Home(home)):
        swap(home)
    store = Store(Journal(home / "journal"), World())
    store.recover()
    [waiting] = store.world.heads.values()
    assert waiting.name == "waiting"
    assert waiting.attempt >= 1000
    names = {head.name for head in _ended(store)}
    assert names == {"done"}
    store.journal.close()
    [kept] = (home / "backups").glob("before-restore-*")
    former = Store(Journal(kept / "journal"), World())
    former.recover()
    assert {head.name for head in _ended(former)} == {"done", "later"}
    former.journal.close()
    assert (kept / "corral.yaml").read_text() == "aging_s: 61"
    assert not (home / "corral.yaml").exists()
    assert (home / "token").read_text() == (kept / "token").read_text()
    assert list(home.glob("blobs/*/*"))


def _ended(store: Store) -> list[Head]:
    return [store.head(row.job) for row in books.history(store.journal)]


async def _prepare_pruning(home: Path) -> None:
    async with scenario.station(home) as life:
        [waiting] = await life.submit(scenario.function_job("waiting", needs=Needs(gpus=1)))
        for n in range(4):
            await life.submit(scenario.function_job(f"done-{n}", b"%d" % n * 20_000))
        await life.until_ended(but=[waiting])


async def _prune(home: Path) -> None:
    async with scenario.station(home) as life:
        life.loop.paused = True
        await _retention(life).turn()


def _retention(life: scenario.Station) -> Retention:
    """As of next month."""
    limits = replace(KEEP, history_s=DAY_S)
    stores = (life.store, life.blobs, life.spool)
    return Retention(*stores, limits, clock=lambda: time.time() + 30 * DAY_S)


async def _pruned(home: Path) -> None:
    async with scenario.station(home) as life:
        [waiting] = life.store.world.heads.values()
        assert waiting.name == "waiting"
        for head in _ended(life.store):
            document = decode_document(life.journal.document(head.submitted_seq))
            for blob in document.blobs():
                there = blob.data is not None or life.blobs.path(blob.sha256).exists()
                assert there, "bytes went before their records"
        await _retention(life).turn()
        assert not _ended(life.store)
        await life.cancel(waiting.id)
        await life.submit(scenario.function_job("after"))
        await life.until_ended()
    left = [path for path in home.glob("blobs/??/*") if path.is_file()]
    assert not left, left
    assert len(list(home.glob("spool/*/*"))) <= 1


async def _prepare_repair(home: Path) -> None:
    await _prepare_pruning(home)
    damage(home / "journal", "UPDATE journal SET body = body || ' ' WHERE seq = 3")


def _repair(home: Path) -> None:
    repair(home, yes=True)


def _repaired(home: Path) -> None:
    """Whatever it came to, somebody asks for it again; what is intact is there."""
    repair(home, yes=True)
    place = Home(home)
    place.take()
    store = Store(Journal(place.journal), World())
    store.recover()
    assert "waiting" in {head.name for head in store.world.heads.values()}
    assert len(store.world.heads) + len(_ended(store)) == 5
    store.journal.close()
    place.release()
    assert len(list(home.glob("journal.damaged-*"))) == 1


def _learn(home: Path) -> None:
    with home.with_suffix(".said").open("ab", buffering=0) as file:
        asyncio.run(painting.play(home, lambda line: file.write(line.encode())))


def _learned(home: Path) -> None:
    said = home.with_suffix(".said")
    lines = said.read_text().splitlines()
    said.unlink()
    asyncio.run(painting.check(home, lines))


def runs(part: Callable[[Path], Coroutine[Any, Any, None]]) -> Part:
    return lambda home: asyncio.run(part(home))


PARTS: dict[str, tuple[Part, Part, Part]] = {
    "restore": (runs(_prepare_restore), swap, swapped),
    "prune": (runs(_prepare_pruning), runs(_prune), runs(_pruned)),
    "repair": (runs(_prepare_repair), _repair, _repaired),
    "learn": (lambda home: home.mkdir(parents=True), _learn, _learned),
}
"""What is there, what is interrupted, and what must be true after the next start."""


def main(what: str, folder: Path) -> None:
    scenario.quiet()
    prepare, work, check = PARTS[what]
    prepared, home = folder / "prepared", folder / "home"
    if wrong := apart(lambda: prepare(prepared)):
        raise AssertionError(wrong)
    number, killed = 0, True
    while killed:
        number += 1
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(prepared, home)
        # The journal of who learns is killed at each of its writes elsewhere.
        counter = Counter(home / "learning" if what == "learn" else home, number)
        status = tracing.watch(lambda: work(home), counter)
        killed = os.WIFSIGNALED(status)
        wrong = "" if killed or status == 0 else f"ended with status {status}"
        wrong = wrong or apart(lambda: check(home))
        told = {"number": number, "killed": killed, "at": counter.last, "wrong": wrong}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
