"""`corral doctor` on homes that are well, absent, broken; on controllers up, down and odd."""

from __future__ import annotations

import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral as sdk
from corral.doctor import machine
from corral.doctor.findings import Finding, examined, ok
from corral.doctor.place import Place
from tests.cli.conftest import Corral
from tests.live import LiveController


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that a controller worked in and left in order."""
    home: Path = tmp_path_factory.mktemp("used")
    home.chmod(0o700)
    with (
        LiveController(home) as live,
        sdk.Client(live.address, live.token) as client,
    ):
        assert sum(client.map(abs, range(-50, 0))) == 1275
    return home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of it, for the test to break: where `corral` of the test looks."""
    copied = tmp_path / "home"
    subprocess.run(["cp", "-a", used, copied], check=True)
    return copied


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on this machine has nothing to do with these tests."""
    for name in ("CORRAL_PORT", "CORRAL_GRPC_PORT"):
        monkeypatch.setenv(name, "0")


def of(corral: Corral, check: str, *, code: int) -> list[dict[str, Any]]:
    done = corral("doctor", "--json")
    assert done.code == code, done.out
    return [found for found in done.json["findings"] if found["check"] == check]


def only(corral: Corral, check: str, status: str, *, code: int) -> dict[str, Any]:
    (found,) = of(corral, check, code=code)
    assert found["status"] == status, found
    assert bool(found["next"]) is (status != "ok")
    return found


def test_a_home_in_order(corral: Corral, home: Path) -> None:
    done = corral("doctor", "--json")
    assert done.code == 0
    odd = [found for found in done.json["findings"] if found["status"] != "ok"]
    assert {found["check"] for found in odd} <= {"controller", "sandbox", "open files", "proxy"}
    assert "all whole" in only(corral, "journal", "ok", code=0)["said"]
    shown = corral("doctor").out
    assert "It is not running." in shown
    assert "-> `corral up` starts it." in shown


def test_it_changes_nothing(corral: Corral, home: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        found = {str(path): path.stat() for path in home.rglob("*") if path.is_file()}
        return {name: (seen.st_size, seen.st_mtime_ns) for name, seen in found.items()}

    before = state()
    assert corral("doctor").code == 0
    after = state()
    # Reading makes SQLite lay an empty log beside its database.
    new = {Path(name).name: after.pop(name)[0] for name in after.keys() - before.keys()}
    assert new.keys() <= {"corral.db-shm", "corral.db-wal"}
    assert not new.get("corral.db-wal")
    assert after == before


def test_no_home_yet(corral: Corral, tmp_path: Path) -> None:
    assert "does not exist yet" in only(corral, "home", "ok", code=0)["said"]
    assert not (tmp_path / "home").exists()


def test_the_home_is_a_file(corral: Corral, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    assert "no folder" in only(corral, "home", "fail", code=1)["said"]


def test_folders_that_are_files(corral: Corral, home: Path) -> None:
    subprocess.run(["rm", "-r", home / "spool"], check=True)
    (home / "spool").write_text("")
    assert "spool" in of(corral, "home", code=1)[0]["said"]


def test_open_to_others(corral: Corral, home: Path) -> None:
    home.chmod(0o755)
    (home / "token").chmod(0o644)
    folder, token = of(corral, "home", code=1)
    assert (folder["status"], token["status"]) == ("warn", "fail")
    assert token["next"] == f"chmod 600 {home / 'token'}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port: 0\nprot: 1\n", "(line 2 of"),
        ("worker:\n  labels: [a]\n  cpus: many\n", "(line 3 of"),
        ("port: [\n", "line 2"),
        ("- a\n", "not a list"),
    ],
)
def test_settings_with_a_mistake(corral: Corral, home: Path, text: str, named: str) -> None:
    (home / "corral.yaml").write_text(text)
    assert named in only(corral, "settings", "fail", code=1)["said"]


def test_tokens(corral: Corral, home: Path) -> None:
    (home / "token").write_text("short")
    only(corral, "token", "fail", code=1)
    (home / "token").write_bytes(b"\xff\xfe" * 20)
    only(corral, "token", "fail", code=1)
    (home / "token").unlink()
    only(corral, "token", "warn", code=0)


def test_a_flipped_bit_in_the_journal(corral: Corral, home: Path) -> None:
    with sqlite3.connect(home / "journal" / "corral.db") as database:
        database.execute(
            "UPDATE journal SET body = replace(body, 'python', 'pythoN') WHERE seq = 7"
        )
        changed = database.execute("UPDATE journal SET at = at + 1 WHERE seq = 7").rowcount
    database.close()
    assert changed == 1
    found = only(corral, "journal", "fail", code=1)
    assert "record 7 is the first one lost" in found["said"]
    assert "corral repair" in found["next"]


@pytest.mark.parametrize("name", ["mark", "corral.db"])
def test_a_part_of_the_journal_is_gone(corral: Corral, home: Path, name: str) -> None:
    (home / "journal" / name).unlink()
    found = only(corral, "journal", "fail", code=1)
    assert name in found["said"]
    assert not (home / "journal" / name).exists()


def test_what_is_no_database(corral: Corral, home: Path) -> None:
    (home / "journal" / "corral.db").write_bytes(os.urandom(8192))
    only(corral, "journal", "fail", code=1)


def test_a_long_journal_is_read_in_part(home: Path) -> None:
    (found,) = Place(home, look_s=-1.0).journal()
    assert found.status == "ok"
    assert "no further" in found.said


def test_a_path_for_jobs_that_does_not_exist(home: Path, tmp_path: Path) -> None:
    (home / "corral.yaml").write_text(f"worker: {{read_paths: [{tmp_path}, {tmp_path}/typo]}}")
    good, found = Place(home).settings()
    assert (good.status, found.status) == ("ok", "warn")
    assert f"worker.read_paths names {tmp_path}/typo, which does not exist" in found.said


def test_leftovers(corral: Corral, home: Path) -> None:
    left = home / "blobs" / "incoming" / "0123456789abcdef"
    left.write_bytes(b"half")
    only(corral, "leftovers", "ok", code=0)  # it may be on its way in
    os.utime(left, (time.time() - 7200,) * 2)
    assert str(left) in only(corral, "leftovers", "warn", code=0)["said"]


def test_a_taken_port(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("CORRAL_PORT", str(port))
        found = only(corral, "port", "fail", code=1)
    assert f"127.0.0.1:{port}" in found["said"]
    assert f"pid {os.getpid()}" in found["said"]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveController]:
    with LiveController(tmp_path / "home") as started:
        yield started


def test_a_controller_at_work(corral: Corral, live: LiveController) -> None:
    live.home.chmod(0o700)
    with sdk.Client(live.address, live.token) as client:
        client.run(abs, (1,))  # its worker is there
        waiting = client.submit(abs, (1,), gpus=1)
        assert only(corral, "http", "ok", code=0)
        assert only(corral, "grpc", "ok", code=0)
        assert only(corral, "versions", "ok", code=0)
        assert only(corral, "workers", "ok", code=0)
        assert only(corral, "queue", "ok", code=0)
        assert "all whole" in only(corral, "journal", "ok", code=0)["said"]
        stuck = only(corral, "jobs", "warn", code=0)
        assert waiting.id in stuck["said"]
        waiting.cancel()
        client.admin.pause()
        assert "is paused" in only(corral, "queue", "warn", code=0)["said"]
        client.admin.resume()
    only(corral, "jobs", "ok", code=0)
    (live.home / "token").write_text("x" * 43)
    assert only(corral, "grpc", "fail", code=1)


def test_a_webhook_without_its_secret(corral: Corral, live: LiveController) -> None:
    hook = "notify: [{url: 'http://127.0.0.1:9/', secret: HOOK_KEY}]\n"
    (live.home / "corral.yaml").write_text(hook)
    assert "HOOK_KEY" in only(corral, "notify", "warn", code=0)["said"]
    with sdk.Client(live.address, live.token) as client:
        client.secrets.set("HOOK_KEY", "not-a-real-one")
    assert of(corral, "notify", code=0) == []


def test_a_controller_that_was_killed(corral: Corral, live: LiveController) -> None:
    live.kill()
    assert "without a goodbye" in only(corral, "controller", "warn", code=0)["said"]
    live.start()


def test_who_is_logged_in_elsewhere_is_told_of_that_controller(
    corral: Corral, live: LiveController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sdk.Client(live.address, live.token) as client:
        client.run(abs, (1,))  # its worker is there
    laptop = tmp_path / "laptop"
    laptop.mkdir(mode=0o700)
    card = {"address": live.address, "token": live.token}
    (laptop / "login.json").write_text(json.dumps(card))
    (laptop / "login.json").chmod(0o600)
    monkeypatch.setenv("CORRAL_HOME", str(laptop))
    assert f"logged in to {live.address}" in only(corral, "controller", "ok", code=0)["said"]
    assert live.address in only(corral, "grpc", "ok", code=0)["said"]
    assert only(corral, "workers", "ok", code=0)
    (laptop / "login.json").write_text(json.dumps({**card, "token": "x" * 43}))
    assert "corral login" in only(corral, "grpc", "fail", code=1)["next"]


def test_nobody_at_the_address(corral: Corral, nobody: None) -> None:
    only(corral, "grpc", "fail", code=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_somebody_elses_home(home: Path, tmp_path: Path) -> None:
    """In a process of its own, which gives up being root before it looks."""
    tmp_path.chmod(0o755)
    program = (
        "import sys, os; from pathlib import Path; from corral.doctor.place import Place;"
        "from corral.doctor.findings import examined;"
        "home = Path(sys.argv[1]); place = Place(home);"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "print([(f.check, f.status) for f in examined(place.checks())])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(home)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[('home', 'fail')]\n"


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, "ok"),
        ({"HTTP_PROXY": "http://p:1"}, "warn"),
        ({"https_proxy": "http://p:1", "no_proxy": "example.org"}, "warn"),
        ({"grpc_proxy": "http://p:1", "NO_PROXY": "127.0.0.1, localhost"}, "ok"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, "ok"),
    ],
)
def test_proxies(environ: dict[str, str], status: str) -> None:
    (found,) = machine.proxy(environ)
    assert found.status == status
    assert ("NO_PROXY=" in found.next) is (status == "warn")


def test_a_check_that_breaks_ends_nothing() -> None:
    def broken() -> Iterator[Finding]:
        raise RuntimeError("no such luck")
        yield

    def after() -> Iterator[Finding]:
        yield ok("still asked")

    first, second = examined([broken, after])
    assert (first.check, first.status) == ("broken", "warn")
    assert "no such luck" in first.said
    assert second == Finding("after", "ok", "still asked")


def test_a_sandbox_that_is_switched_off_is_no_sandbox(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text("worker: {isolate: false}")
    [found] = machine.sandbox({"CORRAL_HOME": str(tmp_path)})
    assert (found.status, "worker.isolate" in found.said) == ("warn", True)


def test_open_files_are_judged_by_what_a_controller_may_take() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        [found] = machine.open_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.status == ("ok" if hard == resource.RLIM_INFINITY or hard >= 4096 else "warn")
