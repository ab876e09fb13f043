"""Everything below this process, daemons too: found, and ended without one getting away.

Whoever asks must be a subreaper. A process that forks and ends at once is gone before it is met in
a list, and its child is not yet in it; so nothing here trusts a single look.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

assert sys.platform != "win32"

CHILDREN_READ = 1 << 20
THREADS_AT = 17
"""In what is told of a process, behind its name."""
SIGKILL, SIGSTOP = 9, 19
"""Numbers of Linux: see `posix`."""
TWO = 32
"""Bytes that hold the numbers of two processes."""
QUICK_LOOKS = 1000
"""How often the children are looked at for every look at the whole machine: it takes so much
less time that a process which lives for microseconds is met there sooner or later."""


def reap() -> Iterator[int]:
    """Collect children that ended, and say which; 0 comes last where some still live."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        yield pid
        if pid == 0:
            return


class Children:
    """The children of one process, for many looks; none where the kernel does not say."""

    def __init__(self, pid: int) -> None:
        self.fd = -1
        try:
            self.fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return

    def look(self) -> list[int]:
        if self.fd < 0:
            return []
        try:
            return [int(pid) for pid in os.pread(self.fd, CHILDREN_READ, 0).split()]
        except OSError:
            return []

    def several(self) -> bool:
        """Whether there is more than one; asked after every attempt."""
        return self.fd >= 0 and os.pread(self.fd, TWO, 0).count(b" ") > 1

    def living(self, beside: int) -> bool:
        """Whether one lives, beside the one that is known."""
        return any(pid != beside and _parent(pid) is not None for pid in self.look())

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def _running() -> dict[int, int]:
    """Every living process and its parent."""
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        if (parent := _parent(int(name))) is not None:
            parents[int(name)] = parent
    return parents


def _parent(pid: int) -> int | None:
    """None where it does not live: one whose first thread alone has ended does."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name may hold spaces and parentheses; what follows it may not.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or (fields[0] == b"Z" and int(fields[THREADS_AT]) < 2):
        return None
    return int(fields[1])


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _running().items():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def kill_descendants(patience_s: float = 5.0, *, scoped: bool = False) -> bool:
    """Kill everything below this process; `scoped` where its signals reach nothing else. False
    when some would not die in time, such as one that waits inside a driver or was not caught."""
    until = time.monotonic() + patience_s
    while 0 in reap():  # Without a child, a subreaper has nothing below it.
        if time.monotonic() > until:
            return False
        if scoped:
            _signal([-1], SIGKILL)  # No fork gets past it: the kernel goes over all at once.
        else:
            _freeze(until)
            _signal(descendants(os.getpid()), SIGKILL)
        time.sleep(0.001)
    return True


def _freeze(until: float) -> None:
    """Stop everything below, until a whole look at it finds nobody new: what is stopped starts
    nothing, and does not notice that others end."""
    children = Children(os.getpid())
    stopped: set[int] = set()
    while time.monotonic() < until:
        caught = _stop(descendants(os.getpid()), stopped)
        # What was missed because it ended meanwhile has left somebody: among our children, or
        # among those of them that have ended.
        for _ in range(QUICK_LOOKS):
            new = _stop(children.look(), stopped)
            ended = {pid for pid in reap() if pid}
            stopped -= ended  # The system may use their numbers again.
            if not new and not ended:
                break
            caught = True
        if not caught:
            break
    children.close()


def _stop(pids: list[int], stopped: set[int]) -> bool:
    """Whether there was one that had not been stopped yet."""
    new = [pid for pid in pids if pid not in stopped]
    _signal(new, SIGSTOP)
    stopped.update(new)
    return bool(new)
