"""A newer Corral from the controller, laid ready beside the one that runs.

Only where `/join` put this one: a checkout, or an installation that somebody else looks after, is
left alone. What is fetched comes over the pinned connection and is compared with its SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import re
import shutil
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral import __version__, wheel
from corral.agent.connection import ControllerAddress
from corral.agent.keeper import COMPLETE, Software
from corral.home import sync_file_system
from corral.joining import trust
from corral.runtime.environments import uv

log = structlog.get_logger("corral.agent.updates")

WHEEL_BYTES = 256 << 20
FETCH_S = 60.0
INSTALL_S = 1800.0


class OfferedUpdate(Struct):
    """The Corral that the controller runs."""

    version: str
    wheel: str
    sha256: str

    @property
    def sound(self) -> bool:
        named = self.wheel == f"corral-{self.version}-py3-none-any.whl"
        return named and bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256))

    @property
    def folder(self) -> str:
        return f"{self.version}-{self.sha256[:8]}"


class Updates:
    def __init__(
        self,
        software: Software,
        address: Callable[[], ControllerAddress],
        environ: Mapping[str, str],
    ) -> None:
        self._software, self._address, self._environ = software, address, dict(environ)

    @classmethod
    def of_this(
        cls, address: Callable[[], ControllerAddress], environ: Mapping[str, str]
    ) -> Updates | None:
        """None where this Corral is not ours to change."""
        software = None if sys.platform == "win32" or wheel.is_editable() else Software.here()
        return cls(software, address, environ) if software is not None else None

    async def prepare(self) -> str:
        """The newer version that now lies ready; empty where there is none."""
        try:
            return await self._prepare()
        except (OSError, ValueError, TimeoutError, RecursionError) as error:
            log.warning("update_failed", reason=str(error) or type(error).__name__)
            return ""

    async def _prepare(self) -> str:
        address = self._address()
        if not address.certificate:
            return ""  # nobody vouches for what comes
        told = await asyncio.to_thread(_fetched, address, "software", 1 << 20)
        offer = msgspec.json.decode(told, type=OfferedUpdate)
        if not offer.sound or not wheel.older(__version__, offer.version):
            return ""
        if self._software.unfit(offer.sha256):
            return ""
        place = self._software.folder / offer.folder
        if not (place / COMPLETE).exists():
            log.info("update_begins", version=offer.version)
            with tempfile.TemporaryDirectory() as folder:
                await self._download(address, offer, Path(folder))
                await self._install(place, Path(folder) / offer.wheel)
        self._software.propose(offer.folder, offer.sha256)
        return offer.version

    async def _download(
        self, address: ControllerAddress, offer: OfferedUpdate, folder: Path
    ) -> None:
        data = await asyncio.to_thread(_fetched, address, offer.wheel, WHEEL_BYTES)
        if hashlib.sha256(data).hexdigest() != offer.sha256:
            raise ValueError("what came is not what the controller announced")
        (folder / offer.wheel).write_bytes(data)
        constraints = await asyncio.to_thread(_fetched, address, "constraints.txt", 1 << 20)
        (folder / "constraints.txt").write_bytes(constraints)

    async def _install(self, place: Path, made: Path) -> None:
        """As the machine's Corral was installed: with pip, or with uv where there is no pip."""
        what = ["-c", str(made.with_name("constraints.txt")), str(made)]
        python = str(place / "bin" / "python")
        if importlib.util.find_spec("pip") is not None:
            await self._run(sys.executable, "-m", "venv", "--clear", str(place))
            quiet = ["-q", "--disable-pip-version-check"]
            await self._run(python, "-m", "pip", "install", *quiet, *what)
        else:
            program, version = uv.program(), uv.own_minor()
            await self._run(program, "venv", "-q", "--clear", "--python", version, str(place))
            await self._run(program, "pip", "install", "-q", "--python", python, *what)
        await asyncio.to_thread(sync_file_system, place)
        (place / COMPLETE).touch()

    async def _run(self, *command: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(["nice"] if shutil.which("nice") else []),
            *command,
            env=self._environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(INSTALL_S):
                _, said = await process.communicate()
        except (TimeoutError, asyncio.CancelledError):
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            raise OSError(f"{Path(command[0]).name} said: {''.join(last)}")


def _fetched(address: ControllerAddress, name: str, limit: int) -> bytes:
    """A part of the controller's software, for a worker of it, over the pinned connection."""
    asked = urllib.parse.urlencode({"worker": address.worker_id})
    request = urllib.request.Request(  # noqa: S310 (where we dialled)
        f"{address.root}/join/{name}?{asked}",
        headers={"Authorization": f"Bearer {address.credential}"},
    )
    with trust.opener(address.certificate).open(request, timeout=FETCH_S) as answer:
        data: bytes = answer.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{name} is larger than anything that we would install")
    return data
