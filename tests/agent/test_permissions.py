"""A job cannot write to what is its user's, but it can take the owner's permissions away."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.cgroups import Cgroups
from corral.runtime import permissions, posix

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
    made.open()
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
