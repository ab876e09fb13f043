"""Secrets of a home: the client token, worker credentials, and tokens good for one attempt."""

from __future__ import annotations

import contextlib
import hmac
import secrets
from hashlib import blake2b
from pathlib import Path

from corral.core.errors import Forbidden
from corral.core.job import JobId
from corral.home import write_durably


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


MESSAGES = ".messages"


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
