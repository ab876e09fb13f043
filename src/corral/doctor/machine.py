"""Checks of the machine and of what is installed on it; none needs a home or a controller."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from corral import __version__, settings, variables
from corral.core.errors import InvalidSettings
from corral.doctor.findings import Check, Finding, fail, ok, warn

OLDEST = (3, 11)
ENOUGH_FILES = 4096
SHM_MIB = 64
SOME_DAY = 1_735_689_600.0
"""The first second of 2025: no clock of a machine that runs this is earlier."""
GIB = 1024**3
_LOOPBACK = ("127.0.0.1", "localhost")


def checks() -> Sequence[Check]:
    system = (clock, open_files, sandbox, shared_memory, gpu, localhost, proxy)
    return (python, packages, uv, *system)


def python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        yield fail(f"Python {found} is too old.", "Install Python 3.11 or newer.")
    else:
        yield ok(f"Python {found}, {sys.executable}")


def packages() -> Iterator[Finding]:
    try:
        declared = importlib.metadata.requires("corral") or []
    except importlib.metadata.PackageNotFoundError:
        yield fail("Corral itself is not installed here.", "pip install corral")
        return
    broken, count = [], 0
    for line in declared:
        requirement, _, condition = line.partition(";")
        if "extra ==" in condition or ("win32" in condition and sys.platform == "win32"):
            continue
        count += 1
        name = re.split(r"[<>=!~ \[]", requirement, maxsplit=1)[0]
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            broken.append(f"{name} is missing")
        else:
            if reason := _misfit(requirement.strip()[len(name) :], found):
                broken.append(f"{name} {found} is {reason}")
    for module in ("grpc", "msgspec", "uvicorn", "fastapi", "websockets", "structlog"):
        try:
            importlib.import_module(module)
        except Exception as error:
            broken.append(f"{module} cannot be imported ({error})")
    if broken:
        yield fail(f"{'; '.join(broken)}.", f"{sys.executable} -m pip install --upgrade corral")
    else:
        yield ok(f"Corral {__version__} and its {count} packages")


def _misfit(wanted: str, found: str) -> str:
    """Why a version does not fit. Only whole numbers count: enough to see a replaced package."""
    have = _numbers(found)
    for bound in filter(None, wanted.split(",")):
        sign, number = re.match(r"\s*([<>=!~]+)\s*(.*)", bound).groups()  # type: ignore[union-attr]
        named = _numbers(number)
        if sign == ">=" and have < named:
            return f"older than {number}"
        if sign == "<" and have >= named:
            return f"newer than what works, below {number}"
    return ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]


def uv() -> Iterator[Finding]:
    from corral.runtime.environments import uv

    program = uv.program()
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail(
            f"uv does not run ({error}): jobs with requirements could not be started.",
            f"{sys.executable} -m pip install --force-reinstall uv",
        )
        return
    if done.returncode:
        yield fail(f"uv ended with {done.returncode}.", "Run `uv --version` and see why.")
    else:
        yield ok(done.stdout.strip())


def clock() -> Iterator[Finding]:
    now = time.time()
    if now < SOME_DAY:
        yield fail(
            f"The clock says {time.strftime('%Y-%m-%d', time.localtime(now))}.",
            "Set it: ids, tokens and waits depend on it.",
        )
    else:
        yield ok(time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def open_files() -> Iterator[Finding]:
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a controller takes what it may have
    if most != resource.RLIM_INFINITY and most < ENOUGH_FILES:
        yield warn(
            f"A process here may open {most} files; many clients at once need more.",
            f"`ulimit -n {ENOUGH_FILES}` as root in the shell that starts the controller.",
        )
    else:
        yield ok("no limit" if most == resource.RLIM_INFINITY else f"up to {most:,}")


def sandbox(environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    with contextlib.suppress(InvalidSettings):  # told of elsewhere
        if not settings.load(environ=environ).settings.worker.isolate:
            yield warn(
                "`worker.isolate` is false: jobs here read and write what you can.",
                "Remove it from corral.yaml unless you trust all code that is sent here.",
            )
            return
    if sys.platform != "linux":
        yield warn(
            "Files are narrowed by Landlock, which only Linux has.",
            "Run only code that you trust here.",
        )
    else:
        from corral.runtime.sandbox.rules import landlock_version

        if version := landlock_version():
            yield ok(f"Landlock, version {version}: jobs see only what they may")
        else:
            yield warn(
                "The kernel has no Landlock, or it is switched off: jobs can read what you can.",
                "Linux 5.13 or newer with `landlock` in its `lsm=` list; until then run only code "
                "that you trust.",
            )


def shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")  # noqa: S108 (looked at, not written)
    if sys.platform != "linux":
        return
    if not folder.is_dir():
        yield warn("There is no /dev/shm.", "Mount it: PyTorch's loaders use it.")
        return
    total = shutil.disk_usage(folder).total
    if total < SHM_MIB << 20:
        yield warn(
            f"{folder} has only {total >> 20} MiB; data loaders of PyTorch need more.",
            "In a container: --shm-size=1g.",
        )
    else:
        yield ok(f"{folder} has {total / GIB:.1f} GiB")


def gpu() -> Iterator[Finding]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
            yield fail(
                f"There is an NVIDIA driver, but it does not answer ({error}).",
                "Run `nvidia-smi`; after an update of the driver the machine wants a reboot.",
            )
        else:
            yield ok("no NVIDIA GPU found: fine, others can be declared as worker.gpus")
        return
    try:
        driver, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(count)
        ]
    finally:
        pynvml.nvmlShutdown()
    yield ok(f"{', '.join(names) or 'no GPU'}; driver {driver}")


def localhost() -> Iterator[Finding]:
    try:
        found = {info[4][0] for info in socket.getaddrinfo("localhost", 80)}
    except OSError as error:
        yield warn(
            f"The name localhost is not known ({error}).",
            "Add `127.0.0.1 localhost` to /etc/hosts, or use 127.0.0.1 everywhere.",
        )
        return
    if "127.0.0.1" not in found:
        yield warn(
            f"localhost is {', '.join(map(str, sorted(found)))}, and the controller listens on "
            "127.0.0.1.",
            "Use 127.0.0.1 in addresses, or add `127.0.0.1 localhost` to /etc/hosts.",
        )
    else:
        yield ok(f"is {', '.join(map(str, sorted(found)))}")


def proxy(environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Corral's own clients never use a proxy on this machine; others that talk to it may."""
    found = variables.proxies() if environ is None else variables.proxies(environ)
    spared = found.pop("no_proxy", "")
    if not found:
        yield ok("none set")
        return
    words = [word.strip() for word in spared.split(",")]
    if "*" in words or all(host in words for host in _LOOPBACK):
        yield ok(f"{', '.join(sorted(found))} set; loopback is spared by NO_PROXY")
    else:
        yield warn(
            f"{', '.join(sorted(found))} would catch what other programs (curl, your own gRPC "
            "clients) send to the controller here.",
            f"export NO_PROXY={','.join(filter(None, [spared, *_LOOPBACK]))}",
        )
