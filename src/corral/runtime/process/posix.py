"""What the runtime asks of a POSIX system and Python has no name for: prctl, capabilities, pidfds.

`windows` has the same names for what both kinds of system can do; `system` is the one of the two
that is meant.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys

assert sys.platform != "win32"

from corral.runtime.process.descendants import kill_descendants as kill_descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

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

OWN_GROUP = 0
"""Creation flags of a script's process; only Windows has them."""
SIGKILL, SIGNALS = 9, (15, 2)
"""Numbers: a runner's start would wait for `signal` and what it loads. Of the latter, the first
asks a job to end, and either may come from a job to its whole group."""
READ_NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

libc = ctypes.CDLL(None, use_errno=True)
_fflush = libc.fflush


def prctl(option: int, value: int) -> bool:
    return int(libc.prctl(option, value, 0, 0, 0)) == 0


def become_subreaper(*, really: bool = True) -> bool:
    """Daemons that a job starts are reparented to this process, so they can be found and ended."""
    return prctl(PR_SET_CHILD_SUBREAPER, really)


def forbid_new_privileges() -> bool:
    return prctl(PR_SET_NO_NEW_PRIVS, 1)


def close_to_others(*, closed: bool = True) -> bool:
    """Whether other processes of this user may look into this one: its memory, environment and
    descriptors. What is executed from here is open again."""
    return prctl(PR_SET_DUMPABLE, not closed)


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
    """Memory for all who hold such a file. Nobody can shorten it any more: whoever then looked at
    it would be killed."""
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    return mmap.mmap(fd, size)


class Lock:
    """A lock between processes that its owner's death releases.

    A record lock, not flock: forked children of a job must not share it.
    """

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


def reap() -> bool:
    """Collect children that ended; True when some still live."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


# --- what `windows` has too ----------------------------------------------------------------------


def hold_descendants() -> None:
    """From here on whatever this process starts, and what those start, can be found and ended."""
    become_subreaper()


def children_left() -> bool:
    return reap()


def interrupt(thread: int) -> None:
    """Wake the main thread with the signal that stops a job, also out of a system call."""
    import signal

    signal.pthread_kill(thread, signal.SIGTERM)


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()


def make_blocking(fd: int) -> None:
    os.set_blocking(fd, True)
