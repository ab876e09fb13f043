"""A worker as a service: what is written for systemd and for Windows, and what is said without."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from corral.agent import service
from corral.agent.keeper import TRIES, Keeper, Software
from corral.core.errors import Unavailable
from tests.debian import needs
from tests.e2e.test_joining import Machine


def exec_line(unit: str) -> list[str]:
    """What systemd makes of ExecStart: its quotes are the shell's, `$$` and `%%` are one each."""
    (line,) = (one for one in unit.splitlines() if one.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    return [word.replace("$$", "$").replace("%%", "%") for word in words]


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = needs("systemd-analyze", "systemd")
    home = tmp_path / 'a "home" of 100 % $HOME'
    for root in (True, False):
        for version in (252, 254):
            path = tmp_path / f"corral-{root}-{version}.service"
            path.write_text(service.unit_text(home, version, root=root))
            done = subprocess.run(
                [analyze, "verify", "--man=no", str(path)], capture_output=True, text=True
            )
            said = [one for one in done.stderr.splitlines() if path.name in one]
            newer = [one for one in said if "RestartSteps" in one or "RestartMaxDelay" in one]
            assert said == (newer if version == 254 else []), done.stderr


def test_the_unit_starts_this_corral_with_this_home(tmp_path: Path) -> None:
    home = tmp_path / 'a "home" of 100 % $HOME'
    words = exec_line(service.unit_text(home, 254, root=True))
    assert words[0] == sys.executable
    assert words[-2:] == ["--home", str(home)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Join one first" in done.stderr  # nobody joined with this home


def test_the_task_is_one_that_can_be_read(tmp_path: Path) -> None:
    text = service.task_text(tmp_path / "a & b", "C:\\py & co\\pythonw.exe", "BARN\\ada")
    task = ElementTree.fromstring(text.partition("\n")[2])
    space = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"
    assert task.findtext(f".//{space}Command") == "C:\\py & co\\pythonw.exe"
    assert str(tmp_path / "a & b") in (task.findtext(f".//{space}Arguments") or "")


@pytest.mark.skipif(service.available(), reason="systemd runs here")
def test_where_nobody_keeps_services_it_is_said() -> None:
    with pytest.raises(Unavailable, match="--foreground"):
        service.install("corral-worker-test", Path("/nowhere"))


def test_one_service_per_home(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    names = {service.name_of(home, usual) for home in (usual, tmp_path / "a", tmp_path / "b")}
    assert len(names) == 3
    assert service.name_of(usual, usual) == "corral-worker"


def test_leaving_forgets_the_controller(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    never = machine.run("worker", "leave")
    assert never.returncode == 1
    assert "Join one first" in never.stderr
    card = machine.home / "worker" / "agent.json"
    card.parent.mkdir(parents=True)
    card.write_text('{"worker_id": "w-1", "name": "barn", "credential": "c", "url": "https://x"}')
    done = machine.run("worker", "leave")
    assert "corral worker revoke barn" in done.stdout
    assert not card.exists()


def install(software: Software, name: str, agent: str) -> None:
    """A Corral whose agent is this shell script."""
    python = software.folder / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{agent}\n")
    python.chmod(0o755)
    (software.folder / name / ".complete").touch()


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    made = Keeper(tmp_path, restarts=True)
    made._software = Software(tmp_path / "software")
    return made


def test_a_new_one_is_current_once_it_was_welcomed(keeper: Keeper, tmp_path: Path) -> None:
    software = Software(tmp_path / "software")
    (tmp_path / "worker").mkdir()
    said = tmp_path / "said"
    install(software, "1-old", f"echo old >> {said}; exit 85")
    welcomed = f"echo '{{\"pid\": '$$'}}' > {tmp_path}/worker/up.json; sleep 1; echo new >> {said}"
    install(software, "2-new", welcomed)
    install(software, "0-ancient", "exit 1")
    software.current.symlink_to("1-old")
    software.propose("2-new", "b" * 64)
    assert keeper.run() == 0
    assert software.current.resolve().name == "2-new"
    assert said.read_text() == "new\n"
    assert sorted(one.name for one in software.folder.iterdir() if one.name[0].isdigit()) == [
        "1-old",  # to go back to
        "2-new",
    ]


def test_one_that_does_not_come_up_is_left_alone(keeper: Keeper, tmp_path: Path) -> None:
    software = Software(tmp_path / "software")
    said = tmp_path / "said"
    install(software, "2-new", f"echo new >> {said}; exit 3")
    install(software, "1-old", f"echo old >> {said}")
    software.current.symlink_to("1-old")
    complete = software.folder / "2-new" / ".complete"
    for tries in range(TRIES + 2):
        complete.touch()
        software.propose("2-new", "b" * 64)
        assert keeper.run() == 0
        assert complete.exists() == (tries >= TRIES)  # it may be damaged: installed anew
    assert said.read_text().count("new") == TRIES
    assert said.read_text().count("old") == TRIES + 2
    assert software.unfit("b" * 64)
    assert not software.unfit("c" * 64)
    assert software.current.resolve().name == "1-old"
