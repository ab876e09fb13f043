"""A job cannot write to what is its user's, but it can take the owner's permissions away."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral import permissions
from corral.agent.environments import manifest
from corral.agent.runners.cgroups import Cgroups
from corral.home import Home
from corral.protocol import messages as wire
from corral.reopening import reopen
from corral.runtime.process import posix
from corral.settings import load
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController
from tests.eventually import eventually_async

OVERRIDE = 0b110
"""By which root passes over the modes of files: DAC_OVERRIDE and DAC_READ_SEARCH."""


@contextlib.contextmanager
def ordinary() -> Iterator[None]:
    """Modes hold for this thread, and those that it starts, as for any user."""
    header = (ctypes.c_uint32 * 2)(posix.CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    posix.libc.capget(ctypes.byref(header), ctypes.byref(sets))
    before = sets[0]
    sets[0] &= ~OVERRIDE
    assert posix.libc.capset(ctypes.byref(header), ctypes.byref(sets)) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert posix.libc.capset(ctypes.byref(header), ctypes.byref(sets)) == 0


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(tmp_path)
    asyncio.run(made.open())
    yield made
    made.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_the_way_to_a_file_is_opened_from_above(tmp_path: Path) -> None:
    (file := tmp_path / "a" / "b" / "file").parent.mkdir(parents=True)
    file.write_text("here")
    for path in (file, file.parent, file.parent.parent):
        path.chmod(0)
    with ordinary():
        with pytest.raises(PermissionError):
            file.read_text()
        assert permissions.restore(str(file))
        assert file.read_text() == "here"
        # No more than the way there needs, and nothing that is as it should be.
        assert file.parent.parent.stat().st_mode & 0o777 == 0o100
        assert not permissions.restore(str(file))
        assert not permissions.restore(str(tmp_path / "nothing" / "here"))


@pytest.mark.parametrize("shut", ["cgroup.kill", "cgroup.events", "", ".."])
async def test_a_group_that_its_job_shut_is_killed_all_the_same(
    groups: Cgroups, sleeper: subprocess.Popen[bytes], shut: str
) -> None:
    if (group := groups.make("r1")) is None:
        pytest.skip("no control groups of our own here")
    base = os.path.dirname(group.path)
    assert group.take_in(sleeper.pid)
    os.chmod(os.path.join(group.path, shut), 0)
    with ordinary():
        assert await group.end()
    assert sleeper.wait(20) < 0
    assert os.listdir(base).count(os.path.basename(group.path)) == 0


def test_a_job_keeps_no_others_out_of_their_groups(
    groups: Cgroups, sleeper: subprocess.Popen[bytes]
) -> None:
    if (first := groups.make("r1")) is None:
        pytest.skip("no control groups of our own here")
    base = os.path.dirname(first.path)
    os.chmod(f"{base}/cgroup.procs", 0)
    os.chmod(base, 0)
    with ordinary():
        second = groups.make("r2")
        assert second is not None
        assert second.take_in(sleeper.pid)
        first.remove()
        second.kill()
        sleeper.wait(20)
        second.remove()
    assert not [name for name in os.listdir(base) if name.endswith(("r1", "r2"))]


def shut(*paths: str) -> None:
    for path in paths:
        os.chmod(path, 0)


async def test_an_agent_whose_folders_a_job_shut_opens_them_again(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    with ordinary():
        await start()
        worker = tmp_path / "worker"
        kit = next(worker.glob("kit/*/corral/runtime"))
        places = [kit / "runner.py", kit, worker / "assets" / "parts"]
        places += [path for path in worker.iterdir() if path.is_dir()]
        job = controller.job(shut, *map(str, (*places, worker, tmp_path)))
        await controller.send(job)
        await controller.completed(job.job)

        async def works() -> bool:
            again = controller.job(os.getpid, fresh=True)
            await controller.send(again)
            return isinstance(await controller.ended(again.job), wire.JobCompleted)

        # As a controller does with what is no fault of a job's.
        await eventually_async(works, "a job that is completed")


def test_a_home_that_a_job_shut_is_opened_by_the_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.take()
    home.release()
    (database := home.journal / "corral.db").write_text("facts")
    (settings := home.path / "corral.yaml").write_text("port: 1234\n")
    database.chmod(0o400)
    for place in (settings, *(place.folder for place in reversed(home.kept_open))):
        with contextlib.suppress(FileNotFoundError):
            place.chmod(0)
    with ordinary():
        assert load(home.path, environ={}).settings.port == 1234
        reopen(home.kept_open)
        home.take()
        home.release()
        with database.open("a") as file:
            file.write(" and more")


@pytest.mark.parametrize("size", [1 << 10, 17 << 20])
def test_an_environment_with_a_file_that_was_shut_is_not_whole(tmp_path: Path, size: int) -> None:
    """Proven by content, or by sizes alone."""
    with (module := tmp_path / "module.py").open("wb") as file:
        file.truncate(size)
    manifest.list_files(tmp_path)
    assert manifest.is_whole(tmp_path)
    module.chmod(0)
    assert not manifest.is_whole(tmp_path)
