"""A script call: unpack the package, run its entry as a child process, wait for its end."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corral.runtime import failures, posix
from corral.runtime.failures import AttemptFailed
from corral.runtime.functions import blob_bytes
from corral.runtime.packages import unpack

if TYPE_CHECKING:
    from corral.runtime.transfer import Transfer

POLL_S = 0.05

CALL = """\
import sys
del sys.argv[0]
from functools import reduce
from importlib import import_module
from types import CoroutineType
module, _, function = sys.argv[0].partition(":")
value = reduce(getattr, function.split("."), import_module(module))()
if type(value) is CoroutineType:
    import asyncio
    value = asyncio.run(value)
sys.exit(value)
"""
"""What `package.module:function` means, as for an installed command: the function finds its
arguments in sys.argv, and what it returns is the exit code (None: 0)."""


def prepare(work: dict[str, Any], folder: str, transfer: Callable[[], Transfer]) -> list[str]:
    """Unpack the package into the folder; the command that runs its entry."""
    blob = work["package"]
    if blob.get("data") is not None:
        unpack(io.BytesIO(blob_bytes(blob, transfer)), folder)
    else:
        with tempfile.TemporaryFile() as package:
            transfer().package(blob["sha256"], package)
            unpack(package, folder)
    entry, argv = work["entry"], list(work.get("argv", ()))
    if ":" in entry:
        return [sys.executable, "-c", CALL, entry, *argv]
    inside = os.path.normpath(entry)
    if os.path.isabs(inside) or inside.startswith(".."):
        raise AttemptFailed("bad_package", f"The entry {entry!r} lies outside of the package.")
    if not os.path.isfile(os.path.join(folder, inside)):
        found = ", ".join(sorted(os.listdir(folder))[:20]) or "nothing"
        raise AttemptFailed(
            "bad_package", f"The package has no file {entry!r} to run. At its top are: {found}."
        )
    return [sys.executable, inside, *argv]


def run(
    command: list[str],
    folder: str,
    words_fd: int,
    agent_fd: int,
    told: Callable[[], bool],
) -> None:
    """Run the command to its end; a failure when that was not exit code 0.

    SIGTERM is not passed on: whoever ends a script signals its whole tree.
    """
    environ = dict(os.environ)
    environ.setdefault("PYTHONUNBUFFERED", "1")  # A pipe would hold back its output otherwise.
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, pass_fds=(words_fd,)
        )
    except (OSError, ValueError) as error:
        raise AttemptFailed(
            "bad_package", f"The script could not be started: {error}. Shorten its arguments."
        ) from error
    cancelled = _wait(process, agent_fd, told)
    code = process.returncode
    if cancelled:
        raise AttemptFailed(**failures.died(code, cancelled=True))
    if code > 0:
        raise AttemptFailed("exit_code", f"The script exited with code {code}.", exit_code=code)
    if code < 0:
        raise AttemptFailed(**failures.by_signal(-code))


def _wait(process: subprocess.Popen[bytes], agent_fd: int, told: Callable[[], bool]) -> bool:
    """Wait for the script and read the agent's lines meanwhile; whether a cancel came."""
    ended = posix.exit_fd(process.pid)
    poll = select.poll()
    poll.register(agent_fd, select.POLLIN)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    while process.poll() is None:
        for fd, event in poll.poll(None if ended is not None else POLL_S * 1000):
            if fd == agent_fd:
                told()
                if event & select.POLLHUP:  # The agent is gone; the supervisor ends us all.
                    poll.unregister(agent_fd)
    if ended is not None:
        os.close(ended)
    return told()
