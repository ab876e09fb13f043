"""Who may pass: a token on every call, and only hosts and origins that are ours."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from corral.core.errors import Forbidden, Unauthorized

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})


def bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("A token is needed: `Authorization: Bearer …`.")
    return token.strip()


def bearer_or_password(header: str | None) -> str:
    """For reading alone, by programs that know names and passwords: the token is the latter."""
    scheme, _, told = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return bearer(header)
    with contextlib.suppress(ValueError):
        if password := base64.b64decode(told, validate=True).decode().partition(":")[2]:
            return password
    raise Unauthorized("A token is needed, as the password.")


class OnlyOurHosts:
    """Refuses foreign Host and Origin headers before anything else looks at a request: any web page
    can make a browser call 127.0.0.1; its name and origin give it away."""

    def __init__(self, app: ASGIApp, own: Iterable[str], *, any_address: bool) -> None:
        self._app, self._own = app, LOOPBACK | {host.lower() for host in own if host}
        self._any_address = any_address
        """Others may reach it by any of its addresses: a page can fake a name, but no number."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope["headers"])
            except Forbidden as error:
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008, "reason": error.message})
                else:
                    from corral.api.rest.answers import refusal

                    await refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Where one comes twice, each must be ours: nobody knows which one others read."""
        found: dict[bytes, list[str]] = {b"host": [], b"origin": []}
        for name, value in headers:
            if name in found:
                found[name].append(value.decode("latin-1"))
        for host in found[b"host"] or [""]:
            called = _name(host)
            if called not in self._own and not (self._any_address and _is_address(called)):
                raise Forbidden(f"This controller does not answer to the host {host[:100]!r}.")
        for origin in found[b"origin"]:
            if _origin(origin) not in self._own:
                raise Forbidden(f"Requests from {origin[:100]!r} are refused.")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _origin(origin: str) -> str:
    try:
        return _name(urlsplit(origin).netloc)
    except ValueError:
        return ""


def _name(netloc: str) -> str:
    netloc = netloc.lower()
    if netloc.startswith("["):
        return netloc.partition("]")[0] + "]"
    return netloc.partition(":")[0]
