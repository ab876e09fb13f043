"""Kills upgrades of a journal at each system call that changes a file, and checks what is left.

A program of its own, `python -m tests.crash.upkeep WHAT FOLDER`, like `sweep`: it forks for each
call, and prints one JSON object for each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from corral.controller import sql
from corral.controller.journal import Journal
from corral.controller.store import Store
from corral.controller.world import World
from tests.controller.version_1 import contents, make_version_1
from tests.crash import scenario, tracing
from tests.crash.sweep import Counter, apart

Part = Callable[[Path], None]


def upgrade(home: Path) -> None:
    Journal(home / "journal").close()


def upgraded(home: Path) -> None:
    store = Store(Journal(home / "journal"), World())
    store.recover()
    assert set(store.world.heads) == {"b"}
    assert store.head("a").state == "succeeded"
    assert store.journal.version == sql.SCHEMA_VERSION
    store.journal.close()
    copies = [path for path in (home / "backups").iterdir() if path.name[0] != "."]
    assert copies
    assert all(contents(copy)[0] == 1 for copy in copies), copies


PARTS: dict[str, tuple[Part, Part, Part]] = {
    "upgrade": (lambda home: make_version_1(home / "journal"), upgrade, upgraded),
}
"""What is there, what is interrupted, and what must be true after the next start."""


def main(what: str, folder: Path) -> None:
    scenario.quiet()
    prepare, work, check = PARTS[what]
    number, killed = 0, True
    while killed:
        number += 1
        home = folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        wrong = apart(lambda home=home: prepare(home))  # type: ignore[misc]
        counter = Counter(home, number)
        status = tracing.watch(lambda home=home: work(home), counter)  # type: ignore[misc]
        killed = os.WIFSIGNALED(status)
        wrong = wrong or ("" if killed or status == 0 else f"ended with status {status}")
        wrong = wrong or apart(lambda home=home: check(home))  # type: ignore[misc]
        told = {"number": number, "killed": killed, "at": counter.last, "wrong": wrong}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
