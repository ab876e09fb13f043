"""What a Windows machine loads, without what Windows does not have.

No Windows machine is at hand in CI. So an interpreter is made to look like one: the modules and
names that only POSIX systems have are taken away, `sys.platform` says `win32`, and then every
module that a worker, a client or a job loads is imported. What happens inside is shown by the
tests of spawned runners (`worker.spawn`), which run on every system.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import corral

SOURCE = Path(corral.__file__).parent

POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "uvloop",
                 "_posixsubprocess")  # fmt: skip
POSIX_NAMES = {
    "os": ["fork", "forkpty", "setsid", "getsid", "killpg", "getpgid", "getuid", "geteuid",
           "getgid", "fchdir", "fchmod", "pread", "pwrite", "fdatasync", "statvfs",
           "register_at_fork", "memfd_create", "pidfd_open", "sched_getaffinity",
           "sched_setaffinity", "getpriority", "waitid", "WNOHANG", "environb", "O_DIRECTORY",
           "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_PATH", "mkfifo", "chown", "getloadavg",
           "sysconf", "PRIO_PROCESS"],
    "signal": ["SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2",
               "SIGQUIT", "SIGWINCH", "SIGPROF", "SIGVTALRM", "ITIMER_REAL", "ITIMER_VIRTUAL",
               "ITIMER_PROF", "setitimer", "pthread_sigmask", "pthread_kill", "SIG_BLOCK",
               "SIG_SETMASK"],
    "socket": ["AF_UNIX", "MSG_DONTWAIT", "send_fds", "recv_fds"],
    "select": ["poll", "epoll", "POLLIN", "POLLHUP"],
}  # fmt: skip

PRETEND = f"""
import sys, types
# The standard library and other people's packages have their own ways on Windows: they are
# loaded as they are here, before the interpreter begins to pretend.
import asyncio, concurrent.futures, ctypes, multiprocessing, os, select, signal, socket, ssl
import subprocess, tempfile, http.client, http.server, logging, sqlite3, zipfile, shutil, queue
import cloudpickle, cryptography.x509, grpc, grpc.aio, msgspec, platformdirs, psutil, pynvml, rich
import structlog, typer, websockets.asyncio.client, websockets.asyncio.server, yaml, uv
import google.protobuf.descriptor_pb2, rich.progress, rich.table, rich.live, rich.console
import click, email.message, urllib.request

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {POSIX_MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} on Windows", name=name)

for name in {POSIX_MODULES!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for module, names in {POSIX_NAMES!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
# And what only Windows has.
signal.SIGBREAK, signal.CTRL_BREAK_EVENT, signal.CTRL_C_EVENT = 21, 1, 0
subprocess.CREATE_NEW_PROCESS_GROUP, subprocess.CREATE_NO_WINDOW = 0x200, 0x08000000
os.O_BINARY, os.O_NOINHERIT = 0x8000, 0x80
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
cdll = ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **kept: cdll(None if name == "ucrtbase" else name, *rest, **kept)
sys.platform = "win32"
"""


def _modules(*folders: str) -> list[str]:
    """Modules below these folders, but for those that say of themselves that they are not for
    Windows."""
    found = []
    for folder in folders:
        place = SOURCE / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if 'assert sys.platform != "win32"' in path.read_text("utf-8"):
                continue
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


WORKER = _modules("agent", "runtime", "protocol", "core", "home.py", "joining",
                  "settings.py", "logs.py", "job.py")  # fmt: skip
CLIENT = _modules("sdk", "cli", "job.py", "contract")


@pytest.mark.parametrize("modules", [WORKER, CLIENT], ids=["worker", "client"])
def test_everything_loads_without_what_only_posix_has(modules: list[str]) -> None:
    assert len(modules) > 20
    imports = "".join(f"import {name}\n" for name in modules)
    check = "assert not {'uvloop', 'fcntl'} & set(sys.modules)\nprint('loaded')\n"
    done = subprocess.run(
        [sys.executable, "-c", PRETEND + imports + check],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "loaded\n"


def test_the_pretence_would_notice() -> None:
    """The counterpart: what is made for POSIX alone does not load."""
    for name in (
        "corral.runtime.supervisor",
        "corral.agent.runners.packets",
        "corral.runtime.process.posix",
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"{PRETEND}import {name}"], capture_output=True, timeout=60
        )
        assert done.returncode != 0, name


def test_a_windows_process_inherits_what_programs_need_there() -> None:
    from corral.variables import passed_environment

    given = {"SYSTEMROOT": r"C:\Windows", "PATHEXT": ".EXE", "COMSPEC": "cmd", "SECRET": "x"}
    assert passed_environment(given) == {key: given[key] for key in given if key != "SECRET"}
