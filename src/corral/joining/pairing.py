"""How two machines that never met show people that they speak to each other and to nobody else.

The worker binds itself to a number before it hears the controller's, and tells it after: so neither
side, nor anybody in between, can choose its own number such that the codes come out alike. Who
stands in between has another certificate, and one try in a million.

    worker      -> controller   commitment(number)
    controller  -> worker       its own number
    worker      -> controller   number
    both show                   code(certificate, name, number, number)
"""

from __future__ import annotations

import hashlib
import secrets

DIGITS = 6


def number() -> str:
    return secrets.token_hex(32)


def commitment(number: str) -> str:
    return _digest("commitment", number).hex()


def code(certificate_sha256: str, name: str, worker: str, controller: str) -> str:
    found = _digest("code", certificate_sha256, name, worker, controller)
    return f"{int.from_bytes(found, 'big') % 10**DIGITS:0{DIGITS}d}"


def _digest(*words: str) -> bytes:
    """Of each word by itself: where one ends and the next begins is part of it."""
    made = hashlib.sha256(b"corral pairing 1")
    for word in words:
        made.update(hashlib.sha256(word.encode()).digest())
    return made.digest()
