"""The commands of uv that make an environment, for the agent and for attempts without one."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from corral.runtime.failures import AttemptFailed

_VERSION = re.compile(r"\d+\.\d+")
VARIABLES = {"UV_NO_PROGRESS": "1", "NO_COLOR": "1", "UV_LINK_MODE": "copy"}
"""`copy` and not `hardlink`: no file of an environment is another name of one in a cache."""


def program() -> str:
    """FileNotFoundError where there is none."""
    try:
        from uv import find_uv_bin
    except ImportError:
        found = shutil.which("uv")
        if found is None:
            raise FileNotFoundError("uv is not installed here") from None
        return found
    return str(find_uv_bin())


def check_python(wanted: str) -> None:
    if not _VERSION.fullmatch(wanted):
        raise AttemptFailed(
            "wrong_document", f"The job's Python must be like '3.11', not {wanted!r}."
        )


def normal(requirements: Iterable[str]) -> tuple[str, ...]:
    """The same for all that mean the same environment."""
    return tuple(sorted(line.strip() for line in requirements))


def building(python: str, requirements: Sequence[str]) -> str:
    """What is said of a job that waits for its environment."""
    count = len(requirements)
    what = f"{count} requirement{'s' * (count != 1)}" if count else f"Python {python}"
    return f"building environment ({what})"


def venv(uv: str, folder: str, *options: str) -> list[str]:
    return [uv, "venv", "--quiet", "--no-project", "--relocatable", *options, folder]


def install(uv: str, python: str, listing: str) -> list[str]:
    return [uv, "pip", "install", "--quiet", "--python", python, "-r", listing]


def compilations(interpreter: str, environment: str) -> list[list[str]]:
    """Inside a job the environment is read-only, so bytecode is made now or never kept. By the
    interpreter itself, which heeds no `.pth` file of a package."""
    what = [interpreter, "-I", "-S", "-m", "compileall", "-q", "-j", "0"]
    return [[*what, folder] for folder in site_packages(environment)]


def site_packages(environment: str) -> list[str]:
    pattern = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
    return sorted(glob.glob(os.path.join(glob.escape(environment), pattern)))


def python_in(environment: str) -> str:
    where = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return os.path.join(environment, *where)


def supervised(command: list[str], config: dict[str, Any]) -> list[str]:
    """The same command confined, where the system can: code of a package may run in it."""
    if sys.platform == "win32":
        return command
    from corral.runtime.sandbox import run_command

    return [sys.executable, "-I", "-S", run_command.__file__, json.dumps(config), *command]


def own_python() -> str:
    return getattr(sys, "_base_executable", "") or sys.executable


def own_minor() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
