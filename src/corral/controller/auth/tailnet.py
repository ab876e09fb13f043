"""Workers that a tailnet vouches for (`auth: tailscale`): who is at an address, as `tailscale
whois` says it. The network between is encrypted and each address belongs to one machine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence

import msgspec
import structlog
from msgspec import Struct

from corral.core.errors import Forbidden, Unauthorized

log = structlog.get_logger()

PROGRAM = "tailscale"
WHOIS_S = 10.0
AT_ONCE = 4
TOKEN = "tailscale"  # noqa: S105
"""Stands where an invitation has its token. It is no secret: the address is what counts."""
MISSING = (
    "corral.yaml says `auth: tailscale`, but the program tailscale is not installed here. Install "
    "it, then start again; until then machines join with what `corral invite` prints."
)


class _Host(Struct):
    sharee: bool = msgspec.field(default=False, name="ShareeNode")


class _Node(Struct):
    stable_id: str = msgspec.field(default="", name="StableID")
    name: str = msgspec.field(default="", name="Name")
    tags: tuple[str, ...] | None = msgspec.field(default=None, name="Tags")
    host: _Host | None = msgspec.field(default=None, name="Hostinfo")


class _User(Struct):
    login: str = msgspec.field(default="", name="LoginName")


class _WhoIs(Struct):
    node: _Node = msgspec.field(default_factory=_Node, name="Node")
    user: _User = msgspec.field(default_factory=_User, name="UserProfile")


class Tailnet:
    def __init__(self, allow: Sequence[str]) -> None:
        self._allow = frozenset(word.lower() for word in allow)
        """Logins and tags; empty for every machine of the tailnet."""
        self._asking = asyncio.Semaphore(AT_ONCE)

    @staticmethod
    def is_installed() -> bool:
        return shutil.which(PROGRAM) is not None

    async def address(self) -> str:
        """Ours in the tailnet; empty where it is not known now."""
        code, said = await self._ask("ip", "-4")
        return said.decode(errors="replace").split("\n")[0].strip() if code == 0 else ""

    async def node(self, address: str) -> str:
        """The id of the machine at this address, if it may be a worker here."""
        code, said = await self._ask("whois", "--json", address)
        try:
            found = msgspec.json.decode(said, type=_WhoIs) if code == 0 else _WhoIs()
        except msgspec.DecodeError as error:
            log.warning("tailscale_not_understood", reason=str(error))
            found = _WhoIs()
        node = found.node
        if not node.stable_id:
            raise Unauthorized(
                "Tailscale does not know the machine that asks. See that it is in the tailnet and "
                "reaches the controller at its tailnet address, or join with `corral invite`."
            )
        if node.host is not None and node.host.sharee:
            raise Forbidden("This machine is only shared with the tailnet; it is no part of it.")
        own = {found.user.login.lower(), *(tag.lower() for tag in node.tags or ())}
        if self._allow and not own & self._allow:
            raise Forbidden(
                f"{node.name.rstrip('.')} ({found.user.login}) is none of `tailscale_allow` in the "
                "controller's corral.yaml."
            )
        return node.stable_id

    async def _ask(self, *words: str) -> tuple[int, bytes]:
        async with self._asking:
            try:
                process = await asyncio.create_subprocess_exec(
                    PROGRAM,
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                log.warning("tailscale_not_asked", reason=str(error))
                return 1, b""
            try:
                async with asyncio.timeout(WHOIS_S):
                    said, _ = await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                return 1, b""
            return process.returncode or 0, said
