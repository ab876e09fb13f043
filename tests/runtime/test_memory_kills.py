"""How it is told that the kernel killed for memory, in every kind of control group and in none."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.runtime import endings
from corral.runtime.process.memory_kills import MemoryKills

GIB = 1 << 30
UNIFIED = "30 23 0:26 /outer {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
MEMORY = "38 30 0:33 / {mount} rw,relatime shared:20 - cgroup cgroup rw,memory"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 5 kB\n")
    return tmp_path / "proc"


def placed(proc: Path, mount: str, group: str) -> Path:
    """Below a mount point beside it, as `mountinfo` tells."""
    top = proc.parent / "groups"
    top.mkdir()
    (proc / "self" / "mountinfo").write_text(
        f"22 1 8:1 / / rw - ext4 x rw\n{mount}\n".format(mount=top)
    )
    (proc / "self" / "cgroup").write_text(group)
    return top


def test_of_version_2_the_nearest_group_that_counts(proc: Path) -> None:
    top = placed(proc, UNIFIED, "0::/outer/service/runners\n")
    (top / "service" / "runners").mkdir(parents=True)
    events = top / "service" / "memory.events"
    events.write_text("low 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 0\n")
    (top / "service" / "memory.max").write_text("max\n")
    (top / "memory.max").write_text(f"{2 * GIB}\n")
    kills = MemoryKills(str(proc))
    assert (kills.seen, kills.limit_bytes, kills.where) == (3, 2 * GIB, "control group")
    assert not kills.since(3, 16 * GIB), "the counter decides, not what it held"
    events.write_text("oom_kill 4\n")
    assert kills.since(3, 0)
    assert not kills.since(kills.seen, 0), "what was told of one kill says nothing of the next"


def test_of_version_1_its_own_group(proc: Path) -> None:
    top = placed(proc, MEMORY, "5:cpu,memory:/jobs\n1:name=systemd:/\n0::/\n")
    (top / "jobs").mkdir()
    (top / "jobs" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    (top / "jobs" / "memory.stat").write_text(f"cache 5\nhierarchical_memory_limit {32 * GIB}\n")
    kills = MemoryKills(str(proc))
    assert (kills.seen, kills.limit_bytes, kills.where) == (1, 16 * GIB, "machine")
    assert kills.since(0, 0)


def test_where_nobody_counts_the_memory_it_held_decides(proc: Path) -> None:
    kills = MemoryKills(str(proc))
    assert kills.seen == -1
    assert kills.since(-1, 13 * GIB)
    assert not kills.since(-1, 12 * GIB)
    nothing = MemoryKills(str(proc / "self"))
    assert (nothing.seen, nothing.limit_bytes) == (-1, 0)
    assert not nothing.since(-1, 13 * GIB)


def test_it_is_told_with_what_it_held_and_what_there_was(proc: Path) -> None:
    told = endings.killed_for_memory(5 * GIB, MemoryKills(str(proc)))
    assert (told["code"], told["exit_code"]) == ("out_of_memory", -9)
    assert "held up to 5.00 GB, and its worker's machine has 16.00 GB" in told["message"]
    unseen = endings.killed_for_memory(0, MemoryKills(str(proc / "self")))
    assert "memory ran out: nobody saw what it held. Let it" in unseen["message"]
