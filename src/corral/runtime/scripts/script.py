"""A script call: unpack the package, run its entry as a child process, wait for its end."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from corral.runtime import failures
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.packages import unpack
from corral.runtime.functions import blob_bytes
from corral.runtime.hints import FOLDER
from corral.runtime.process import system
from corral.runtime.scripts import errors

if TYPE_CHECKING:
    from corral.runtime.files.transfer import Transfer
    from corral.runtime.hints import Bounds
    from corral.runtime.order import ScriptWork

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


def prepare(
    work: ScriptWork, folder: str, transfer: Callable[[], Transfer]
) -> tuple[list[str], str]:
    """Unpack the package into the folder; the command that runs its entry, and what was sent."""
    blob = work["package"]
    if blob.get("data") is not None:
        unpack(io.BytesIO(blob_bytes(blob, transfer)), folder)
    else:
        with tempfile.TemporaryFile() as package:
            transfer().package(blob["sha256"], package)
            unpack(package, folder)
    entry, argv = work["entry"], list(work.get("argv", ()))
    if ":" in entry:
        return [sys.executable, "-c", CALL, entry, *argv], FOLDER
    inside = os.path.normpath(entry)
    if os.path.isabs(inside) or inside.startswith(".."):
        raise AttemptFailed("bad_package", f"The entry {entry!r} lies outside of the package.")
    if not os.path.isfile(os.path.join(folder, inside)):
        found = ", ".join(sorted(os.listdir(folder))[:20]) or "nothing"
        raise AttemptFailed(
            "bad_package", f"The package has no file {entry!r} to run. At its top are: {found}."
        )
    sent = inside if os.listdir(folder) == [inside] else FOLDER
    return [sys.executable, inside, *argv], sent


def run(
    command: list[str],
    folder: str,
    inherited: Sequence[int],
    bounds: Bounds,
    wait_for: Callable[[subprocess.Popen[bytes]], bool],
) -> None:
    """AttemptFailed unless it ends with 0. `wait_for` says whether somebody cancelled it."""
    told_in = os.path.join(tempfile.gettempdir(), "corral-script-error")
    environ = {**os.environ, **errors.environ(told_in, bounds)}
    if sys.platform != "win32" and inherited:
        environ[errors.HURRY] = str(inherited[-1])
    environ.setdefault("PYTHONUNBUFFERED", "1")  # A pipe would hold back its output otherwise.
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=inherited,
            creationflags=system.OWN_GROUP,
        )
    except (OSError, ValueError) as error:
        raise AttemptFailed(
            "bad_package", f"The script could not be started: {error}. Shorten its arguments."
        ) from error
    cancelled = wait_for(process)
    code = process.returncode
    if not cancelled and code == 1 and (told := errors.told(told_in)):
        raise AttemptFailed(**told, exit_code=code)
    if not cancelled and 0 < code < failures.WINDOWS_CRASH:
        raise AttemptFailed("exit_code", f"The script exited with code {code}.", exit_code=code)
    if cancelled or code:
        held_bytes = system.held_by_children()
        raise AttemptFailed(**failures.died(code, cancelled=cancelled, held_bytes=held_bytes))
