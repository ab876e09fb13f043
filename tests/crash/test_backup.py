"""A backup made under load gives back every job acknowledged before it; a file that is not whole,
or not honest, changes nothing."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.controller.history.retention import Retention
from corral.controller.recovery import restore
from corral.controller.recovery.backup import HEADER, MANIFEST, Backups
from corral.core.errors import BackupRefused, JobNotFound
from corral.core.events import AttemptPlaced, JobSucceeded
from corral.core.job import Needs
from corral.home import Home
from tests.controller.test_retention import KEEP
from tests.crash import scenario, tracing
from tests.crash.books import end_of, stories
from tests.crash.conftest import ROOT, complaints
from tests.crash.test_full_disk import gated
from tests.eventually import PATIENCE_S, eventually
from tests.live import CORRAL, LiveController

pytestmark = pytest.mark.crash


def command(controller: LiveController, *words: str) -> dict[str, Any]:
    ran = subprocess.run(
        [CORRAL, *words, "--json"], env=controller.environ, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr + controller.log
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


class Load(contextlib.AbstractContextManager["Load"]):
    """Somebody who submits all the time."""

    def __init__(self, controller: LiveController) -> None:
        self._client = corral.Client(controller.address, controller.token)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._submit)
        self.acknowledged: list[str] = []

    def _submit(self) -> None:
        number = 0
        while not self._enough.is_set():
            number += 1
            text = "x" * (20_000 if number % 10 == 0 else 10)
            self.acknowledged.append(self._client.submit(str.upper, (text,)).id)

    def at_least(self, count: int) -> list[str]:
        eventually(lambda: len(self.acknowledged) >= count, f"{count} jobs are acknowledged")
        return list(self.acknowledged)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._enough.set()
        self._thread.join()
        self._client.__exit__(None, None, None)


@pytest.mark.long
def test_backup_under_load_and_restore(tmp_path: Path) -> None:
    home, yard, file = tmp_path / "home", tmp_path / "yard", tmp_path / "kept.tar"
    yard.mkdir()
    environ = {
        "CORRAL_WORKER_WRITE_PATHS": f"[{yard}]",
        "CORRAL_WORKER_CPUS": "3",
        "CORRAL_SHUTDOWN_GRACE_S": "0.2",
    }
    with LiveController(home, environ=environ) as controller:
        assert controller.process is not None
        with corral.Client(controller.address, controller.token) as client:
            running = client.submit(gated, (str(yard), "running", 4000))
            eventually((yard / "running.started").exists, "it has begun")
            with Load(controller) as load:
                before = load.at_least(100)
                told = command(controller, "backup", str(file))
                assert told["living"] >= 1
                load.at_least(len(load.acknowledged) + 20)
            later = load.acknowledged[-1]
            assert client.job(later).result(timeout=PATIENCE_S)
        (yard / "running.started").unlink()
        told = command(controller, "restore", str(file), "--yes")
        assert told["restarted"]
        assert controller.card["pid"] == controller.process.pid, "the same process"
        with corral.Client(controller.address, controller.token) as client:
            with pytest.raises(JobNotFound):
                client.job(later).status()
            for job in before:
                assert client.job(job).result(timeout=PATIENCE_S) in ("X" * 10, "X" * 20_000)
            eventually((yard / "running.started").exists, "it has begun")
            (yard / "running.gate").touch()
            again = client.job(running.id)
            assert again.result(timeout=PATIENCE_S) == "grass" * 4000
            assert again.status().attempt > 1000, "above every attempt that may have been placed"
            told_of = "\n".join(again.why().history)
            assert "the journal was restored: attempts go on above 10" in told_of
            assert "placed on :" not in told_of
            assert client.submit(len, ("moo",)).result(timeout=PATIENCE_S) == 3
    # Numbers went on above all that were promised: what watched the former life never meets them.
    kept = Path(told["kept"])
    former = stories(kept)
    assert isinstance(end_of(former[later]), JobSucceeded), "the former state is kept"
    highest = max(number for story in former.values() for number, _ in story)
    found = stories(home)
    assert set(before) <= set(found)
    new = [number for number, fact in found[running.id] if isinstance(fact, AttemptPlaced)]
    assert max(new) > highest


def test_restore_where_no_controller_runs(tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    environ = {"CORRAL_WORKER_ENABLED": "false"}
    with LiveController(tmp_path / "home", environ=environ) as controller:
        (controller.home / "corral.yaml").write_text("aging_s: 61\n")
        with corral.Client(controller.address, controller.token) as client:
            job = client.submit(len, ("moo",)).id
        token = controller.token
        command(controller, "backup", str(file))
        assert file.stat().st_mode & 0o777 == 0o600
    elsewhere = LiveController(tmp_path / "elsewhere", environ=environ)
    told = command(elsewhere, "restore", str(file), "--yes")
    assert not told["restarted"]
    with elsewhere, corral.Client(elsewhere.address, elsewhere.token) as client:
        assert elsewhere.token == token
        assert (elsewhere.home / "corral.yaml").read_text() == "aging_s: 61\n"
        assert client.job(job).status().state == "queued"


async def make(home: Path, file: Path) -> None:
    """A home with ended jobs, a waiting one, blobs and output, and its backup."""
    async with scenario.station(home) as life:
        await life.submit(scenario.function_job("waiting", needs=Needs(gpus=1)))
        waiting = list(life.store.world.heads)
        for n in range(3):
            await life.submit(scenario.function_job(f"done-{n}"))
        await life.submit(scenario.function_job("large", b"y" * 20_000))
        await life.until_ended(but=waiting)
        # What somebody else put there is left out, and does no harm.
        next(life.blobs.folder.glob("??/*")).with_name("notes.txt").write_text("mine")
        (life.spool.folder / "my notes").mkdir()
        (home / "some notes").write_text("mine")
        retention = Retention(life.store, life.blobs, life.spool, KEEP)
        pieces = [piece async for piece in Backups(life.home, retention, "test").stream()]
        assert pieces[-1].done == pieces[-1].total
        file.write_bytes(b"".join(piece.data for piece in pieces))


@pytest.fixture
async def made(tmp_path: Path) -> tuple[Home, Path]:
    scenario.quiet()
    await make(tmp_path / "home", tmp_path / "kept.tar")
    return Home(tmp_path / "home"), tmp_path / "kept.tar"


def everything(home: Home) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.path.rglob("*") if path.is_file()}


def refused(home: Home, file: Path) -> str:
    before = everything(home)
    with pytest.raises(BackupRefused, match="Nothing was changed") as caught:
        restore.prepare(home, file)
    assert everything(home) == before
    with pytest.raises(BackupRefused):
        restore.checked(file)
    return caught.value.message


async def test_a_file_that_is_cut_off(made: tuple[Home, Path]) -> None:
    home, file = made
    data = file.read_bytes()
    end = len(data.rstrip(b"\0"))
    for size in [0, 1, 511, 512, 1500, *range(2048, end, end // 12), end - 1]:
        file.write_bytes(data[:size])
        refused(home, file)


async def test_a_file_that_was_changed(made: tuple[Home, Path]) -> None:
    home, file = made
    data = file.read_bytes()
    end = len(data.rstrip(b"\0"))
    with tarfile.open(file) as tar:
        places = [m.offset_data + m.size // 2 for m in tar if m.size]
    for place in [*places, 3, end - 1]:
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused(home, file)


Change = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]


def rewritten(file: Path, change: Change) -> None:
    """The same file by somebody who knows how one is made: its manifest is right again."""
    import hashlib

    with tarfile.open(file) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    change(members)
    listed = {
        m.name: (len(data), hashlib.sha256(data).hexdigest())
        for m, data in members
        if m.name != MANIFEST
    }
    with tarfile.open(file, "w") as tar:
        for info, data in members:
            if info.name == MANIFEST:
                data = json.dumps(listed).encode()
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))


def entry(name: str, data: bytes = b"moo", kind: bytes = tarfile.REGTYPE) -> Change:
    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = "/etc/passwd"
        members.insert(1, (info, data))

    return change


def replaced(name: str, edit: Callable[[bytes], bytes]) -> Change:
    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        for n, (info, data) in enumerate(members):
            if info.name == name:
                members[n] = (info, edit(data))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (entry("../../outside"), "no place"),
        (entry("/etc/outside"), "no place"),
        (entry("blobs/aa/../../../outside"), "no place"),
        (entry("spool/aa/../x"), "no place"),
        (entry("worker/agent.json"), "no place"),
        (entry("lock"), "no place"),
        (entry("plan.json", b'{"before": "../../..", "aside": ["token"]}'), "no place"),
        (entry("backups"), "no place"),
        (entry("restore"), "no place"),
        (entry("journal"), "no place"),
        (entry("journal/mark"), "no place"),
        (entry("a\nb"), "no place"),
        (entry("link", kind=tarfile.SYMTYPE), "no plain file"),
        (entry("link", kind=tarfile.LNKTYPE), "no plain file"),
        (entry("device", kind=tarfile.CHRTYPE), "no plain file"),
        (entry("folder", kind=tarfile.DIRTYPE), "no plain file"),
        (entry("token"), "twice"),
        (entry(f"blobs/aa/{'a' * 64}"), "other bytes"),
        (lambda members: members.reverse(), "does not begin"),
        (lambda members: members.append((tarfile.TarInfo("late"), b"x")), "behind its manifest"),
        (lambda members: members.pop(1) and None, "no journal"),
        (replaced(HEADER, lambda data: data.replace(b'"format": 1', b'"format": 9')), "format"),
        (replaced(HEADER, lambda data: data.replace(b'"last_seq": ', b'"last_seq": 1')), "journal"),
        (replaced(HEADER, lambda data: b"[]"), "read"),
        (replaced("journal/corral.db", lambda data: data[:4096] + b"x" + data[4097:]), "journal"),
        (replaced("journal/corral.db", lambda data: b""), "journal"),
    ],
)
async def test_a_file_that_is_not_honest(
    made: tuple[Home, Path], change: Change, reason: str
) -> None:
    home, file = made
    rewritten(file, change)
    assert reason in refused(home, file)
    assert not (home.path.parent / "outside").exists()


async def test_a_rewritten_file_is_as_good(made: tuple[Home, Path]) -> None:
    """So that what the test above refuses is refused for what was changed in it."""
    _, file = made
    rewritten(file, lambda members: None)
    assert restore.checked(file).living == 1


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    if reason := tracing.unavailable():
        pytest.skip(reason)

    def run(what: str) -> list[dict[str, Any]]:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.crash.upkeep", what, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return run


@pytest.mark.long
@pytest.mark.timeout(600)  # hundreds of processes, one after the other
@pytest.mark.parametrize("what", ["restore", "prune", "repair", "learn"])
def test_killed_at_every_write(
    rows: Callable[[str], list[dict[str, Any]]], what: str, covered: Callable[[str], None]
) -> None:
    found = rows(what)
    assert not any(row["wrong"] for row in found), complaints(found)
    assert len(found) > 20
    covered(f"killed at each of {len(found) - 1} writing calls of {what}")
