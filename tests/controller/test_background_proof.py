"""A real controller that began with a snapshot proves the past of its journal while it works."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.store import Store
from corral.controller.world import World
from tests.controller.test_pruning import damage, fill
from tests.controller.test_snapshot import take
from tests.eventually import eventually
from tests.live import CORRAL, LiveController

ALONE = {"CORRAL_WORKER_ENABLED": "false"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a past, and a snapshot of it."""

    async def make() -> None:
        (tmp_path / "journal").mkdir()
        store = Store(Journal(tmp_path / "journal"), World())
        store.recover()
        await fill(store, 6)
        await take(store)
        await store.close()

    asyncio.run(make())
    return tmp_path


def health(controller: LiveController) -> dict[str, Any]:
    with urllib.request.urlopen(f"{controller.url}/health", timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def proven(controller: LiveController) -> dict[str, Any]:
    """Its health, once the proof is over."""

    def found() -> dict[str, Any]:
        told = health(controller)
        return told if told["journal"] != "being proven" else {}

    return eventually(found, "the proof is over")


def corral(controller: LiveController, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, *words], env=controller.environ, capture_output=True, text=True, timeout=60
    )


def test_a_whole_journal_is_proven(home: Path) -> None:
    with LiveController(home, environ=ALONE) as controller:
        found = proven(controller)
        assert (found["journal"], found["status"], found["queued"]) == ("whole", "ok", 1)
        assert "journal_proven" in controller.log
    assert (home / "journal" / snapshot.NAME).exists()


@pytest.mark.long
def test_damage_in_the_past_is_told_everywhere_and_the_next_start_refuses(home: Path) -> None:
    damage(home / "journal", "UPDATE journal SET at = at + 1 WHERE seq = 6")
    sentence = "record 6 is the first one lost"
    with LiveController(home, environ=ALONE) as controller:
        found = proven(controller)
        assert (found["status"], found["journal"]) == ("damaged", "damaged")
        assert sentence in found["reason"]
        assert "corral repair" in found["reason"]
        assert sentence in corral(controller, "status").stdout.replace("\n", " ")
        doctor = corral(controller, "doctor")
        assert doctor.returncode != 0
        assert sentence in doctor.stdout + doctor.stderr
        assert "journal_damaged" in controller.log
        request = urllib.request.Request(
            f"{controller.url}/cluster/status",
            headers={"authorization": f"Bearer {controller.token}"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert json.load(answer)["status"] == "damaged"
    assert not (home / "journal" / snapshot.NAME).exists()
    for _ in range(2):
        refused = LiveController(home, environ=ALONE)
        with pytest.raises(AssertionError, match="ended with"):
            refused.start()
        assert sentence in refused.log.replace("\n", " ")


@pytest.mark.long
def test_a_proof_ends_with_its_controller(home: Path) -> None:
    """Killed in the middle, it leaves no process behind that reads its files."""
    with LiveController(home, environ=ALONE) as controller:
        controller.kill()
    # Nobody's child any more.
    eventually(lambda: not [one for one in _arguments() if str(home) in one], "no process is left")
    with LiveController(home, environ=ALONE) as controller:
        assert proven(controller)["journal"] == "whole"


def _arguments() -> list[str]:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return [line for line in found if "proof_process" in line]
