"""What a job process may do: files by Landlock, memory and cores by limits, no new privileges.

Each function says what it really achieved, so that a worker never claims more than it enforces.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
import sys

from corral.runtime.process import posix
from corral.runtime.sandbox import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from corral.runtime.hints import Bounds

assert sys.platform != "win32"

# Numbers of Linux's generic system call table, the same on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNAL = 1 << 0, 1 << 1
SCOPES_SINCE = 6

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEV, RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
FIRST_RIGHTS = (1 << 13) - 1
RIGHTS_SINCE = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV, 9: RESOLVE_UNIX}
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV | RESOLVE_UNIX

READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV
# Root makes itself any device in a folder where it may; the settings can name one as a path.
WRITE = FIRST_RIGHTS & ~(MAKE_CHAR | MAKE_BLOCK) | REFER | TRUNCATE | IOCTL_DEV | RESOLVE_UNIX

SYSTEM_READ = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix",
    "/proc", "/sys", "/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf",
    "/mnt/wsl/resolv.conf", "/run/nvidia-persistenced", "/run/opengl-driver", "/run/current-system",
)  # fmt: skip
OWN_PROCESS = "/proc/self"
"""CUDA names its threads there."""
SYSTEM_SOCKETS = ("/run/nvidia-persistenced", "/run/systemd/resolve", "/run/nscd")
"""Services that programs expect to reach. Kernels before Landlock's ABI 9 cannot tell sockets that
have a path apart: there a job reaches each one that its user may write to."""
SYSTEM_WRITE = ("/dev/shm",)  # noqa: S108
"""Shared memory of multiprocessing and of PyTorch's data loaders."""

PLAIN_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""`tty` is the terminal of whoever opens it, and a job has none."""
GPU_DEVICES = (
    "nvidia*", "nvhost*", "nvmap", "nvgpu", "nvsciipc", "gdrdrv",  # NVIDIA's, on small boards too
    "kfd", "dri/renderD*",  # AMD's and Intel's; `dri/card*` would be the screen
    "dxg",  # of Windows, for WSL
    "accel",
    "infiniband",  # between machines with GPUs
)  # fmt: skip
"""What programs and GPUs need, folders with all that is in them. Whatever else is in `/dev` stays
out, known to us or not: terminals, consoles, keyboards, microphones, disks, memory."""


def apply(config: Mapping[str, Any], kit: str) -> dict[str, str]:
    """Confine this process and all it will start; what is enforced, one honest word each."""
    limits = config.get("limits") or {}
    enforced = {
        "files": "",
        "memory": limit_memory(limits.get("memory_bytes")),
        "cpu": limit_cpus(limits.get("cpus")),
        "privileges": "no_new_privs" if posix.forbid_new_privileges() else "",
    }
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    posix.drop_insight()
    if config.get("isolate"):
        known, programs = config.get("known_paths", ()), config.get("programs")
        enforced["files"] = narrow_files(*allowed(config, kit), known, programs)
        posix.leave_session_keyring()
        seccomp.filter_calls()
    return enforced


def allowed(config: Mapping[str, Any], kit: str) -> tuple[list[str], list[str]]:
    """What a job may read, and what it may write."""
    reads = [*SYSTEM_READ, kit, *config.get("read_paths", ())]
    return reads, [*SYSTEM_WRITE, *config.get("write_paths", ())]


def bounds(config: Mapping[str, Any], kit: str, enforced: Mapping[str, str]) -> Bounds:
    """What was left to this process, for those who reckon with it or explain it."""
    from corral.runtime.hints import Bounds

    memory_bytes = (config.get("limits") or {}).get("memory_bytes") or 0
    reads, writes = allowed(config, kit)
    writes += [OWN_PROCESS, *devices()]
    return Bounds(memory_bytes, bool(enforced["files"]), reads, writes)


def devices() -> list[str]:
    """Those of the list that are here now."""
    found = [f"/dev/{name}" for name in PLAIN_DEVICES]
    for pattern in GPU_DEVICES:
        folder, _, name = f"/dev/{pattern}".rpartition("/")
        try:
            found += [f"{folder}/{one}" for one in os.listdir(folder) if _matches(one, name)]
        except OSError:
            continue
    return found


def _matches(name: str, pattern: str) -> bool:
    """`fnmatch` would load `re`, which every start of a runner then waits for."""
    return name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def limit_memory(memory_bytes: int | None) -> str:
    """Bound the data of each process of the job. Not its address space: far more of that is
    reserved, by CUDA above all, than is ever used."""
    if not memory_bytes:
        return ""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    except (OSError, ValueError):
        return ""
    return "rlimit_data"


def limit_cpus(cpus: Iterable[int] | None) -> str:
    if not cpus:
        return ""
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError):
        return ""
    return "affinity"


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 where there is none or it is switched off."""
    version = posix.libc.syscall(
        ctypes.c_long(CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1)
    )
    return max(int(version), 0)


def known_rights(version: int) -> int:
    """The rights that a Landlock ABI knows; naming others makes it refuse everything."""
    return FIRST_RIGHTS | sum(right for since, right in RIGHTS_SINCE.items() if version >= since)


def narrow_files(
    reads: Iterable[str],
    writes: Iterable[str],
    known: Iterable[str] = (),
    programs: Iterable[str] | None = None,
) -> str:
    """From here on only these paths exist for this process, of `known` folders the files whose
    names it knows; its signals and abstract sockets stay inside, where the kernel can do that. Only
    `programs` can be executed, or all that it may read where none are named. Needs no_new_privs."""
    version = landlock_version()
    if version < 1:
        return ""
    handled = known_rights(version)
    # The structure grew with the versions: file rights, then network rights, then scopes.
    attributes = struct.pack("=Q", handled)
    if version >= SCOPES_SINCE:
        scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNAL
        attributes = struct.pack("=QQQ", handled, 0, scopes)
    ruleset = _create(attributes)
    if ruleset < 0:
        return ""
    granted = handled if programs is None else handled & ~EXECUTE
    try:
        for paths, rights in (
            (reads, READ),
            (known, READ_FILE),
            (("/dev",), READ_DIR),
            ((OWN_PROCESS, *devices()), DEVICE),
            (SYSTEM_SOCKETS, RESOLVE_UNIX),
            (writes, WRITE),
        ):
            for path in paths:
                _allow(ruleset, path, rights & granted)
        for path in programs or ():
            _allow(ruleset, path, EXECUTE | READ_FILE)
        return "landlock" if _restrict(ruleset) else ""
    finally:
        os.close(ruleset)


def scope_signals() -> bool:
    """From here on signals of this process, and of what it starts, reach only what it starts;
    whether that is proved. Its parent must be one that it could signal before."""
    if landlock_version() < SCOPES_SINCE or not posix.forbid_new_privileges():
        return False
    # Rules that say nothing of moving files between folders would forbid it.
    ruleset = _create(struct.pack("=QQQ", REFER, 0, SCOPE_SIGNAL))
    if ruleset < 0:
        return False
    outside = os.getppid()
    try:
        _allow(ruleset, "/", REFER)
        os.kill(outside, 0)
        if not _restrict(ruleset):
            return False
    except OSError:
        return False
    finally:
        os.close(ruleset)
    try:
        os.kill(outside, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


class Hold:
    """How everything that a job or a build ever starts is held together, to be ended at once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._group: str = config.get("cgroup", "")
        """The control group of this runner: this process is in it too."""
        self._scoped = bool(config.get("isolate")) and scope_signals()
        posix.hold_descendants()

    def kill(self) -> bool:
        """Everything below this process; False where some of it was not caught."""
        return posix.kill_descendants(scoped=self._scoped)

    def end(self) -> None:
        """The whole group and this process with it, where there is one."""
        if self._group:
            from corral import permissions

            permissions.restore(f"{self._group}/cgroup.kill")
            with open(f"{self._group}/cgroup.kill", "w") as file:
                file.write("1")


def _create(attributes: bytes) -> int:
    size = ctypes.c_size_t(len(attributes))
    return int(
        posix.libc.syscall(ctypes.c_long(CREATE_RULESET), attributes, size, ctypes.c_uint(0))
    )


def _restrict(ruleset: int) -> bool:
    number, none = ctypes.c_long(RESTRICT_SELF), ctypes.c_uint(0)
    return bool(posix.libc.syscall(number, ctypes.c_int(ruleset), none) == 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # A path that is not there cannot be used anyway.
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, fd)
        posix.libc.syscall(
            ctypes.c_long(ADD_RULE),
            ctypes.c_int(ruleset),
            ctypes.c_int(RULE_PATH_BENEATH),
            rule,
            ctypes.c_uint(0),
        )
    finally:
        os.close(fd)
