"""Who may pass: a token on every call, and only hosts and origins that are ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from corral.core.errors import Forbidden, Unauthorized

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})


def bearer(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("A token is needed: `Authorization: Bearer …`.")
    return token.strip()


class Hosts:
    """Any web page can make a browser call 127.0.0.1; its name and origin give it away."""

    def __init__(self, own: Sequence[str], *, any_address: bool = False) -> None:
        self._own = LOOPBACK | {host.lower() for host in own if host}
        self._any_address = any_address
        """Whether it is reached from other machines: by whatever number it has there. A page that
        lies about its name cannot lie about a number."""

    def check_host(self, host: str) -> None:
        name = _name(host)
        if name not in self._own and not (self._any_address and _is_address(name)):
            raise Forbidden(f"This controller does not answer to the host {host[:100]!r}.")

    def check_origin(self, origin: str) -> None:
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
