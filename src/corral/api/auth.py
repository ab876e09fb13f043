"""Who may pass: a token on every call, and only hosts and origins that are ours."""

from __future__ import annotations

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

    def __init__(self, own: Sequence[str]) -> None:
        self._own = LOOPBACK | {host.lower() for host in own}

    def check_host(self, host: str) -> None:
        if _name(host) not in self._own:
            raise Forbidden(f"This controller does not answer to the host {host[:100]!r}.")

    def check_origin(self, origin: str) -> None:
        if _origin(origin) not in self._own:
            raise Forbidden(f"Requests from {origin[:100]!r} are refused.")


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
