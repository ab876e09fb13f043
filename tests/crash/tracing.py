"""A process under watch: every system call that changes a file is seen before it happens.

A small ptrace loop of our own, because the question is "the Nth such call of the whole process":
strace counts for each thread alone. Threads are followed, child processes are not. Nothing in the
watched program knows about it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

_X86_64 = {
    1: "write", 18: "pwrite64", 20: "writev", 2: "open", 74: "fsync", 75: "fdatasync",
    77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink",
    257: "openat", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 265: "linkat",
    285: "fallocate", 296: "pwritev", 316: "renameat2", 326: "copy_file_range", 40: "sendfile",
    306: "syncfs",
}  # fmt: skip
_AARCH64 = {
    64: "write", 68: "pwrite64", 66: "writev", 82: "fsync", 83: "fdatasync", 46: "ftruncate",
    56: "openat", 34: "mkdirat", 35: "unlinkat", 38: "renameat", 37: "linkat", 47: "fallocate",
    70: "pwritev", 276: "renameat2", 285: "copy_file_range", 71: "sendfile", 267: "syncfs",
}  # fmt: skip
NAMES = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x8 | 0x10 | 0x100000  # good syscall stops, threads, exec, die with the tracer
_WALL = 0x40000000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY, _EXIT = 1, 2
_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace: {os.strerror(error)}")


def unavailable() -> str:
    """Why processes cannot be watched here, or nothing. Tried in a process of its own, since only
    one without threads may fork."""
    if sys.platform != "linux" or not NAMES:
        return f"system calls are watched on Linux on x86_64 and aarch64, not {platform.machine()}"
    trial = "from tests.crash.tracing import watch; watch(lambda: None, lambda call: False)"
    tried = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True)
    if tried.returncode:
        reason = tried.stderr.strip().splitlines()[-1]
        return f"this machine does not let a process watch another ({reason})"
    return ""


class Call(NamedTuple):
    """One system call as it is about to happen."""

    tid: int
    name: str
    args: tuple[int, ...]

    def path(self, fd: int) -> str:
        """Where an open file is now."""
        try:
            return os.readlink(f"/proc/{self.tid}/fd/{fd}")
        except OSError:
            return ""

    def text(self, address: int) -> str:
        data = b""
        while b"\0" not in data and len(data) < 65536:
            # Page by page: the string may end just before memory does.
            step = 4096 - (address + len(data)) % 4096
            data += self.memory(address + len(data), step)
        return os.fsdecode(data.split(b"\0", 1)[0])

    def memory(self, address: int, size: int) -> bytes:
        with open(f"/proc/{self.tid}/mem", "rb", buffering=0) as file:
            file.seek(address)
            return file.read(size)

    def named(self, directory: int, address: int) -> str:
        """The path an `…at` call means."""
        directory = ctypes.c_int(directory).value
        name = self.text(address)
        if os.path.isabs(name):
            return os.path.normpath(name)
        at = f"/proc/{self.tid}/cwd" if directory == _AT_FDCWD else ""
        return os.path.normpath(os.path.join(os.readlink(at) if at else self.path(directory), name))

    def position(self, fd: int) -> int:
        """Where a plain write would go."""
        with open(f"/proc/{self.tid}/fdinfo/{fd}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        if int(fields["flags"], 8) & os.O_APPEND:
            return os.stat(f"/proc/{self.tid}/fd/{fd}").st_size
        return int(fields["pos"])


def target(call: Call) -> tuple[str, ...]:
    """The paths a call would change; none where it changes no file."""
    name, args = call.name, call.args
    if name in ("open", "openat"):
        flags = args[1] if name == "open" else args[2]
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return ()
        return (call.named(_AT_FDCWD, args[0]) if name == "open" else call.named(args[0], args[1]),)
    if name in ("mkdir", "rmdir", "unlink"):
        return (call.named(_AT_FDCWD, args[0]),)
    if name in ("mkdirat", "unlinkat"):
        return (call.named(args[0], args[1]),)
    if name in ("rename", "link"):
        return call.named(_AT_FDCWD, args[0]), call.named(_AT_FDCWD, args[1])
    if name in ("renameat", "renameat2", "linkat"):
        return call.named(args[0], args[1]), call.named(args[2], args[3])
    return (call.path(args[2] if name == "copy_file_range" else args[0]),)


def watch(
    program: Callable[[], None],
    entered: Callable[[Call], bool],
    left: Callable[[Call, int], None] | None = None,
) -> int:
    """Runs `program` in a forked process to its end; its wait status. `entered` sees each call
    before it happens, and kills the process then and there by answering True; `left` sees what
    became of it."""
    pid = os.fork()
    if pid == 0:
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            program()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        raise OSError(0, "the watched process did not wait")
    _ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
    _ptrace(_SYSCALL, pid)
    return _follow(pid, entered, left)


def _follow(
    pid: int, entered: Callable[[Call], bool], left: Callable[[Call, int], None] | None
) -> int:
    info = ctypes.create_string_buffer(88)
    open_calls: dict[int, Call] = {}
    known: set[int] = {pid}
    while True:
        tid, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if tid == pid:
                return status
            continue
        number = os.WSTOPSIG(status)
        deliver = 0
        if number == _SYSCALL_STOP:
            _libc.ptrace(_GET_SYSCALL_INFO, tid, 88, ctypes.addressof(info))
            if info.raw[0] == _ENTRY:
                nr, *args = struct.unpack_from("7Q", info.raw, 24)
                name = NAMES.get(nr)
                if name is not None:
                    call = open_calls[tid] = Call(tid, name, tuple(args))
                    if entered(call):
                        os.kill(pid, signal.SIGKILL)
                        continue
            elif info.raw[0] == _EXIT and (done := open_calls.pop(tid, None)) and left:
                left(done, struct.unpack_from("q", info.raw, 24)[0])
        elif status >> 16 == 0 and not (number == signal.SIGSTOP and tid not in known):
            deliver = number  # a signal of its own; a new thread begins with a stop of ours
        known.add(tid)
        try:
            _ptrace(_SYSCALL, tid, 0, deliver)
        except ProcessLookupError:
            continue  # it died meanwhile; its status comes
