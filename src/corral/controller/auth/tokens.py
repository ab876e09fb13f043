"""Tokens of clients: made, listed, revoked, and who holds one; and those good for one attempt.

Those of clients lie in one file of the home, readable by its owner alone, and only digests of them.
The home's own token is admin.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import secrets
import time
from hashlib import blake2b, sha256
from pathlib import Path

import structlog
from msgspec import Struct

from corral.controller.files.private_file import read_kept, write_kept
from corral.core.access import Caller, Role
from corral.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    TokenNotFound,
    Unauthorized,
)
from corral.core.job import JobId
from corral.home import write_durably

log = structlog.get_logger()

PREFIX = "corral_"
"""So that a token is known for one wherever it turns up."""
_NAME = re.compile(r"[\w.@-]{1,100}")
AGAIN = "make new ones with `corral token create`"
"""What to do about a file that cannot be read."""
MAX_TOKENS = 10_000
MAX_AGE_S = 100 * 366 * 86_400.0
MESSAGES = ".messages"


def kept_secret(path: Path) -> str:
    """The secret in a file that only its owner reads, made on first use."""
    with contextlib.suppress(FileNotFoundError):
        if kept := path.read_text(encoding="ascii").strip():
            return kept
    secret = secrets.token_urlsafe(32)
    write_durably(path, f"{secret}\n".encode())
    return secret


def same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def digest_of(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class AttemptTokens:
    """Nothing is stored: a token is the attempt's name, signed with the home's key. One is good for
    the transfers of its job; the other for its order and its messages, which no job gets."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def issue(self, job: JobId, attempt: int, use: str = "") -> str:
        named = f"{job}.{attempt}{use}".encode()
        return blake2b(named, key=self._key, digest_size=32).hexdigest()

    def check(self, token: str, job: JobId, attempt: int, use: str = "") -> None:
        if not same(token, self.issue(job, attempt, use)):
            raise Forbidden(f"This token is not good for attempt {attempt} of job {job}.")


class Token(Struct, frozen=True):
    name: str
    role: Role
    sha256: str
    created_at: float
    expires_at: float = 0.0
    """0 where it never does."""


class _File(Struct):
    tokens: list[Token] = []


class Access:
    def __init__(self, path: Path, home_token: str) -> None:
        self._path, self._home_token = path, home_token
        self._owner = Caller("", Role.ADMIN)
        self._changing = asyncio.Lock()
        self._by_digest = {token.sha256: token for token in read_kept(path, _File, AGAIN).tokens}

    def caller(self, token: str) -> Caller:
        """Who holds this token, or Unauthorized."""
        if same(token, self._home_token):
            return self._owner
        kept = self._by_digest.get(digest_of(token))
        if kept is None:
            raise Unauthorized(
                "This token is not good here. The right one is in the controller's home, or comes "
                "from `corral token create`."
            )
        if kept.expires_at and kept.expires_at <= time.time():
            raise Unauthorized(f"The token {kept.name!r} has expired. Ask for a new one.")
        return Caller(kept.name, kept.role)

    def tokens(self) -> list[Token]:
        return sorted(self._by_digest.values(), key=lambda token: token.name)

    async def create(self, name: str, role: str, expires_in: float = 0.0) -> tuple[str, Token]:
        """A new token, shown this once, and what is kept of it. Durable when this returns."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"A token's name has 1 to 100 letters, digits and ._@-; got {name[:100]!r}."
            )
        if role not in {one.value for one in Role}:
            raise InvalidRequest(f"The roles are {', '.join(Role)}; got {role[:40]!r}.")
        if not 0 <= expires_in <= MAX_AGE_S:
            raise InvalidRequest("A token expires after some seconds, up to a hundred years.")
        async with self._changing:
            if any(token.name == name for token in self._by_digest.values()):
                raise Conflict(f"There is a token {name!r} already. Revoke it first.")
            if len(self._by_digest) >= MAX_TOKENS:
                raise Conflict(f"There are {MAX_TOKENS:,} tokens. Revoke some first.")
            text, now = PREFIX + secrets.token_urlsafe(32), time.time()
            expires_at = now + expires_in if expires_in else 0.0
            token = Token(name, Role(role), digest_of(text), now, expires_at)
            await self._write([*self._by_digest.values(), token])
        log.info("token_created", name=name, role=role)
        return text, token

    async def revoke(self, name: str) -> Token:
        async with self._changing:
            found = [token for token in self._by_digest.values() if token.name == name]
            if not found:
                raise TokenNotFound(
                    f"There is no token {name[:100]!r}. `corral token list` lists them."
                )
            await self._write([one for one in self._by_digest.values() if one.name != name])
        log.info("token_revoked", name=name)
        return found[0]

    async def _write(self, tokens: list[Token]) -> None:
        await write_kept(self._path, _File(tokens))
        self._by_digest = {token.sha256: token for token in tokens}
