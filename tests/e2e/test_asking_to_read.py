"""`read=[…]`: a path of the machine for one job, if the machine's owner asks for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.core.errors import ExceedsAllWorkers, InvalidJob, JobFailed
from tests.live import CORRAL, LiveController


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "rows.csv").write_text("1\n2\n")
    return folder


def rows(folder: str) -> int:
    from pathlib import Path

    return len((Path(folder) / "rows.csv").read_text("utf-8").splitlines())


def test_the_owner_lets_one_job_read_a_folder(controller: LiveController, data: Path) -> None:
    with corral.Client(controller.address, controller.token) as client:
        assert client.run(rows, (str(data),), read=[data]) == 2
        (data / "one").symlink_to(data / "rows.csv")
        assert client.run(rows, (str(data),), read=str(data)) == 2
        with pytest.raises(PermissionError):  # not in the process that could, kept warm
            client.run(rows, (str(data),))


def test_the_command_line_asks_too(controller: LiveController, data: Path, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"print(open('{data}/rows.csv').read().split())\n")
    command = [CORRAL, "run", "--read", "data", "main.py"]
    done = subprocess.run(
        command, env=controller.environ, cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.stdout == "['1', '2']\n", done.stderr


def test_others_may_read_what_the_settings_say(controller: LiveController, data: Path) -> None:
    with corral.Client(controller.address, controller.token) as client:
        token, _ = client.admin.create_token("reads", role="admin")
    with (
        corral.Client(controller.address, token) as other,
        pytest.raises(ExceedsAllWorkers, match=rf"jobs may not read {data} there until its"),
    ):
        other.run(rows, (str(data),), read=[data])


def test_nobody_else_gets_it_by_what_the_owner_has_sent(
    controller: LiveController, data: Path
) -> None:
    """Not by the same function for the same user, which the controller has checked already, and not
    by running the owner's job again."""
    with corral.Client(controller.address, controller.token) as client:
        token, _ = client.admin.create_token("another", role="admin")
        first = client.submit(rows, (str(data),), read=[data], user="somebody", wait=False)
        assert first.result() == 2
        with corral.Client(controller.address, token) as other:
            with pytest.raises(ExceedsAllWorkers, match="jobs may not read"):
                other.submit(rows, (str(data),), read=[data], user="somebody", wait=False)
            with pytest.raises(ExceedsAllWorkers, match="jobs may not read"):
                other.job(first.id).retry()
        assert first.retry().result() == 2


@pytest.fixture
def open_to_all(tmp_path: Path, data: Path) -> Iterator[LiveController]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(f"worker: {{read_paths: [{data}]}}\n")
    with LiveController(home) as live:
        yield live


def test_a_worker_that_lets_everybody_read_it_takes_the_job(
    open_to_all: LiveController, data: Path
) -> None:
    with corral.Client(open_to_all.address, open_to_all.token) as client:
        token, _ = client.admin.create_token("reads", role="submit")
    with corral.Client(open_to_all.address, token) as other:
        (data / "deep").mkdir()
        (data / "deep" / "rows.csv").write_text("1\n")
        assert other.run(rows, (f"{data}/deep",), read=[data / "deep"]) == 1
        with pytest.raises(ExceedsAllWorkers, match="jobs may not read"):
            other.run(rows, (f"{data}/deep",), read=[f"{data}-of-others"])


def test_what_cannot_be_read_is_said(controller: LiveController, data: Path) -> None:
    with corral.Client(controller.address, controller.token) as client:
        with pytest.raises(JobFailed, match=r"asked to read .*/gone, and this worker has no such"):
            client.run(rows, (str(data),), read=[data / "gone"])
        for path in (controller.home, controller.home.parent, controller.home / "token"):
            with pytest.raises(JobFailed, match="Corral keeps its own files there"):
                client.run(rows, (str(data),), read=[path])
        (data / "link").symlink_to(controller.home)
        with pytest.raises(JobFailed, match="Corral keeps its own files there"):
            client.run(rows, (str(data),), read=[data / "link"])
        with pytest.raises(InvalidJob, match=r"read has paths such as '~/data'; got 3"):
            client.run(rows, (str(data),), read=[3])  # type: ignore[list-item]
