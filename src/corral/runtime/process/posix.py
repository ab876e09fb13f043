"""What the runtime asks of a POSIX system and Python has no name for: prctl, capabilities, pidfds,
and how everything below a process is found and ended.

`windows` has the same names for what both kinds of system can do.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from typing import Any

assert sys.platform != "win32"

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
INSIGHT = (2, 16, 17, 19, 21, 27, 34, 38, 39, 40)
"""Capabilities that look past file permissions, into other processes, devices or the kernel:
DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, MKNOD, SYSLOG, PERFMON, BPF,
CHECKPOINT_RESTORE. But for MKNOD, containers do not have them by default either."""
CAPABILITY_VERSION_3 = 0x20080522
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
JOIN_SESSION_KEYRING = 1
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4
HIGH_FD = 200
"""Our own descriptors live up here, away from code that closes "3 and a few more"."""

APART: dict[str, Any] = {"start_new_session": True}
"""How a process is started that Ctrl-C in our terminal does not concern."""
HOMES, TEMPORARY = ("HOME",), ("TMPDIR",)
"""Variables that name a process's home, and where it puts what it does not keep."""
OWN_GROUP = 0
"""Creation flags of a script's process; only Windows has them."""
SIGKILL, SIGSTOP, SIGNALS = 9, 19, (15, 2)
"""Numbers: a runner's start would wait for `signal` and what it loads. Of the last ones, the first
asks a job to end, and either may come from a job to its whole group."""
READ_NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

libc = ctypes.CDLL(None, use_errno=True)
_fflush = libc.fflush


def prctl(option: int, value: int) -> bool:
    return int(libc.prctl(option, value, 0, 0, 0)) == 0


def forbid_new_privileges() -> bool:
    return prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_insight() -> None:
    """Root may look into every process. From here on this one may not, nor what it starts."""
    for number in INSIGHT:
        prctl(PR_CAPBSET_DROP, number)  # refused to those who have nothing to lose
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable, first their lower halves and then their upper ones.
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(ctypes.byref(header), ctypes.byref(sets)):
        return
    for number in INSIGHT:
        for index in range(3):
            sets[index + number // 32 * 3] &= ~(1 << number % 32)
    libc.capset(ctypes.byref(header), ctypes.byref(sets))


def leave_session_keyring() -> bool:
    """Whoever logged in may have left tokens there, for file servers among others."""
    number = KEYCTL.get(os.uname().machine)
    return number is not None and bool(
        libc.syscall(ctypes.c_long(number), JOIN_SESSION_KEYRING, None) >= 0
    )


def die_with(parent: int) -> None:
    """End this process when its parent ends, also if that already happened."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def flush_c() -> None:
    """Write out what C code left in stdio buffers; a pipe makes them fully buffered."""
    _fflush(None)


def move_high(fd: int, *, inheritable: bool = False) -> int:
    """The same file under a high descriptor; the low one is closed."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(fd)
    if inheritable:
        os.set_inheritable(moved, True)
    return moved


def enlarge_pipe(fd: int, size: int) -> None:
    """More room lets a writer run on while its reader is busy; the system may refuse."""
    try:
        fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), size)
    except OSError:
        return


def memory() -> int:
    """A file without a name or content, which a program that is executed can take over."""
    return move_high(os.memfd_create("corral", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def share(fd: int, size: int) -> mmap.mmap:
    """Memory for all who hold the file; sealed, since a look at a shortened one is a SIGBUS."""
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    return mmap.mmap(fd, size)


class Lock:
    """Its owner's death releases it. A record lock: by flock, a job's forks would share it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


def exit_fd(pid: int) -> int | None:
    """A descriptor that turns readable when the process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


# --- what `windows` has too ----------------------------------------------------------------------


def hold_descendants(*, really: bool = True) -> None:
    """Whatever it starts from here on can be found and ended: daemons are reparented to it."""
    prctl(PR_SET_CHILD_SUBREAPER, really)


def close_to_others() -> bool:
    """Jobs run as the same user; from here on they cannot look into this process: its memory,
    environment and descriptors. What is executed from here is open again."""
    return prctl(PR_SET_DUMPABLE, 0)


def held_by_children() -> int:
    """How much memory one of those that were waited for held, in bytes, at most."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def children_left() -> bool:
    """Collects those that ended; True when some still live."""
    return 0 in reap()


def interrupt(thread: int) -> None:
    """Wake the main thread with the signal that stops a job, also out of a system call."""
    import signal

    signal.pthread_kill(thread, signal.SIGTERM)


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()


# --- everything below this process, daemons too --------------------------------------------------
#
# Whoever asks must be a subreaper. A process that forks and ends at once is gone before it is met
# in a list, and its child is not yet in it; so nothing here trusts a single look.

CHILDREN_READ = 1 << 20
THREADS_AT = 17
"""Which field of /proc/PID/stat behind the name counts the threads."""
TWO = 32
"""Bytes that hold the numbers of two processes."""
KILL_S = 5.0
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
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (parent := _parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
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


def kill_descendants(*, scoped: bool = False) -> bool:
    """Kill everything below this process; `scoped` where its signals reach nothing else. False
    when some would not die in time, such as one that waits inside a driver or was not caught."""
    until = time.monotonic() + KILL_S
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
