"""What a webhook is: an address that is told what happened, and how its address must look."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, urlsplit

from corral.core.errors import InvalidJob

MAX_URL = 2000
PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A URL taken apart: where to connect, and what to ask for there."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def netloc(self) -> str:
        """For the Host header, and for logs: the rest of a webhook's URL is often its key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = PORTS["https" if self.secure else "http"]
        return host if self.port == usual else f"{host}:{self.port}"


def address_of(url: str) -> Address:
    """The parts of a URL; ValueError with one sentence where it is none we would call."""
    if len(url) > MAX_URL or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError(f"A webhook's URL has at most {MAX_URL} printable characters, no spaces.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("A webhook's URL cannot be read; write https://host/path.") from None
    if parts.scheme not in PORTS or not host or not host.isascii():
        raise ValueError("A webhook's URL begins with http:// or https:// and names a host.")
    if "@" in parts.netloc:
        raise ValueError("A webhook's URL holds no user and password; sign with a secret instead.")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""
    return Address(parts.scheme == "https", host, port or PORTS[parts.scheme], path + query)


def check_webhook(url: str) -> None:
    try:
        address_of(url)
    except ValueError as error:
        raise InvalidJob(f"notify: {error}") from None
