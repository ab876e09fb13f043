"""What ends `corral up` at once: one clear sentence and a non-zero code."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest

from corral import Client
from tests.live import CORRAL, LiveController


def up(home: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    return subprocess.run(
        [CORRAL, "up", "--port", "0", "--grpc-port", "0", *flags],
        env={**kept, "CORRAL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=30,
    )


def refused(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ran.returncode != 0
    lines = ran.stderr.strip().splitlines()
    assert len(lines) == 1, ran.stderr
    for word in words:
        assert word in lines[0]


def test_a_second_controller_on_the_same_home(controller: LiveController) -> None:
    refused(up(controller.home), "Another controller", "corral down")


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_taken_port(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(up(tmp_path, flag, port), port, flag)


def test_private_files_that_a_job_opened_to_others_are_closed_again(tmp_path: Path) -> None:
    with LiveController(tmp_path) as controller:
        (tmp_path / "token").chmod(0o644)
        (tmp_path / "transfer.key").chmod(0o000)
        controller.stop()
        controller.start()
        for name in ("token", "transfer.key"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert "private_files_were_open" in controller.log


def test_a_newer_database(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    connection = sqlite3.connect(tmp_path / "journal" / "corral.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    refused(up(tmp_path), "newer Corral", "99")


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(up(tmp_path / "file" / "home"), "cannot be written", "CORRAL_HOME")


def test_a_bad_file(tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text("prot: 1")
    refused(up(tmp_path), "no setting 'prot'", "port")


def test_a_flag_out_of_range(tmp_path: Path) -> None:
    ran = up(tmp_path, "--port", "123456")
    assert ran.returncode != 0
    assert "123456" in ran.stderr


@pytest.mark.parametrize("host", ["192.0.2.77", "nowhere.invalid"])
def test_a_host_that_is_not_this_machine(tmp_path: Path, host: str) -> None:
    refused(up(tmp_path, "--host", host), host, "Cannot listen")


def test_secrets_are_their_owners_alone(controller: LiveController) -> None:
    for name in ("token", "transfer.key", "controller.json", "worker/agent.json"):
        mode = stat.S_IMODE((controller.home / name).stat().st_mode)
        assert mode == 0o600, name


def test_as_json_every_line_of_the_log_is_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GRPC_")]:
        monkeypatch.delenv(name)  # gRPC's notes were kept away by what the tests themselves set
    controller = LiveController(tmp_path / "home", environ={"CORRAL_LOG_FORMAT": "json"})
    with controller, Client(home=controller.home) as client:
        assert client.run(abs, (-1,)) == 1
    assert all(json.loads(line)["event"] for line in controller.log.splitlines())


def test_up_detached_status_and_down(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    environ = {**kept, "CORRAL_HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CORRAL, *arguments], env=environ, capture_output=True, text=True, timeout=60
        )

    started = run("up", "--detach", "--port", "0", "--grpc-port", "0")
    assert started.returncode == 0, started.stderr
    try:
        status = run("status", "--json")
        assert status.returncode == 0
        assert json.loads(status.stdout)["workers"] == 1, "its own was waited for"
        again = run("up", "--detach", "--port", "0", "--grpc-port", "0")
        assert again.returncode != 0
        assert "corral down" in again.stderr
    finally:
        assert run("down").returncode == 0
    assert run("status").returncode != 0
    assert run("down").returncode == 0
