"""Variables of this process's environment that other processes and libraries get."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_PASSED = re.compile(
    r"PATH|LANG|LC_.*|TZ|LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|SSL_CERT_.*|(?i:[a-z]+_proxy)"
    # Without these no program starts on Windows, or finds others; os.environ has them in capitals.
    r"|SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|NUMBER_OF_PROCESSORS|PROCESSOR_ARCHITECTURE"
    r"|PROGRAMDATA|PROGRAMFILES.*|COMMONPROGRAMFILES.*|ALLUSERSPROFILE"
)


def passed_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a job may inherit from the worker: how to find programs, the network and the clock."""
    return {name: text for name, text in environ.items() if _PASSED.fullmatch(name)}


_AGENT = re.compile(
    r"CORRAL_.*|PYTHON.*|VIRTUAL_ENV|TMPDIR|TEMP|TMP|TERM|NO_COLOR|LOGNAME|SHELL|LD_.*|ROC.*|HIP_.*|HSA_.*"
)


def agent_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the agent on this machine inherits from its controller: settings and what it passes on,
    not whatever else was exported in the shell that started it."""
    kept = {name: text for name, text in environ.items() if _AGENT.fullmatch(name)}
    for name in ("CORRAL_TOKEN", "CORRAL_INVITATION"):
        kept.pop(name, None)
    return {**build_environment(environ), **kept}


_BUILDING = re.compile(
    r"HOME|USER|XDG_.*|PIP_.*|UV_.*|GIT_.*|APPDATA|LOCALAPPDATA|USERPROFILE|USERNAME"
)


def build_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the builder of job environments inherits: as a job, and how to reach the registries."""
    kept = {name: text for name, text in environ.items() if _BUILDING.fullmatch(name)}
    return {**passed_environment(environ), **kept}


def build_paths(environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, ...], str, str]:
    """What builds read in this home (settings of uv and pip), uv's cache, and its Pythons."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    reads = [config / "uv", config / "pip", home / ".pip", home / ".netrc", home / ".pyenv"]
    pythons = environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python"
    return tuple(map(str, reads)), environ.get("UV_CACHE_DIR") or str(cache / "uv"), str(pythons)


def proxies(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Proxies that programs started from here would use, and what they spare as `no_proxy`."""
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")
    return {
        name.lower(): text
        for name, text in environ.items()
        if name.lower() in names and text.strip()
    }


def quiet_grpc() -> None:
    """gRPC's own notes about forks are not for users: children are started, never forked. It reads
    these when it is loaded; what it then does at a fork can end the child with a fault."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
