"""The string that invites a worker or a client: where the controller is, a token for it, and how to
know that it is the right one.

    corral://TOKEN@192.168.1.20:8700?grpc=50051&sha256=…

A client's ends with `&for=client`: who has the wrong one in hand is told so.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from corral.core.errors import InvalidRequest

SCHEME = "corral"
VARIABLE = "CORRAL_INVITATION"
"""The environment variable that `corral worker join` and `corral login` take it from."""
CLIENT = "client"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Invitation(NamedTuple):
    host: str
    port: int
    grpc_port: int
    token: str
    sha256: str
    for_client: bool = False

    def text(self) -> str:
        query = urlencode({"grpc": self.grpc_port, "sha256": self.sha256})
        if self.for_client:
            query += f"&for={CLIENT}"
        return f"{SCHEME}://{quote(self.token, safe='')}@{bracketed(self.host)}:{self.port}?{query}"

    def shell(self, pin: str) -> str:
        """The line that makes a bare Linux machine a worker. `-k`, because nobody vouches for the
        certificate: the pinned key does."""
        fetch = f"curl -fsSk --noproxy '*' --pinnedpubkey 'sha256//{pin}' {self.url}/join"
        return f"{fetch} | {VARIABLE}='{self.text()}' sh -s --"

    def command(self) -> str:
        """The line for a machine that has Corral, on Linux. Nothing secret is in an argument list:
        every process of the machine, a job for one, can read those."""
        return f"{VARIABLE}='{self.text()}' corral {'login' if self.for_client else 'worker join'}"

    def powershell(self, pin: str) -> str:
        fetch = f"curl.exe -fsSk --noproxy '*' --pinnedpubkey 'sha256//{pin}' {self.url}/join.ps1"
        return f"& ([scriptblock]::Create(({fetch} | Out-String))) '{self.text()}'"

    @property
    def url(self) -> str:
        return f"https://{bracketed(self.host)}:{self.port}"

    @property
    def grpc(self) -> str:
        return f"{bracketed(self.host)}:{self.grpc_port}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse(text: str) -> Invitation:
    """The invitation in a string, as somebody may have pasted it."""
    try:
        parts = urlsplit(text.strip().strip("'\""))
        asked = parse_qs(parts.query)
        found = Invitation(
            host=parts.hostname or "",
            port=parts.port or 0,
            grpc_port=int(asked.get("grpc", ["0"])[0]),
            token=unquote(parts.username or ""),
            sha256=asked.get("sha256", [""])[0].lower(),
            for_client=asked.get("for") == [CLIENT],
        )
    except ValueError:
        found = None
    if (
        found is None
        or parts.scheme != SCHEME
        or not (found.host and found.token and 0 < found.port < 65536)
        or not 0 < found.grpc_port < 65536
        or not _SHA256.fullmatch(found.sha256)
    ):
        raise InvalidRequest(
            "This is no invitation of a controller. It looks like corral://TOKEN@HOST:8700?grpc="
            "50051&sha256=… and is printed by `corral up --host 0.0.0.0` and by `corral invite`; "
            "put it between single quotes."
        )
    return found


def for_worker(text: str) -> Invitation:
    found = parse(text)
    if found.for_client:
        raise InvalidRequest(
            "This string is for clients: `corral login` takes it. The one that makes a machine a "
            "worker is printed by `corral invite`, without --client."
        )
    return found


def for_client(text: str) -> Invitation:
    found = parse(text)
    if not found.for_client:
        raise InvalidRequest(
            "This string is for workers: `corral worker join` takes it. The one that a client logs "
            "in with is printed by `corral invite --client NAME`."
        )
    return found
