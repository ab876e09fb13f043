"""Correlation ids: one short word that a client's call, every line about it on the controller and
on the worker, the job's own environment and the answer share.

The client chooses it, or else the controller. It is kept with the job, also over a restart.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

KEY = "corral-correlation-id"
"""The name in gRPC metadata and, in any case, among HTTP headers."""
ALSO = "x-request-id"
"""What proxies call it."""
MAX_LENGTH = 64

_FORM = re.compile(rf"[A-Za-z0-9._:/+=@-]{{1,{MAX_LENGTH}}}")
_current: ContextVar[str] = ContextVar("correlation_id", default="")


def new() -> str:
    return secrets.token_hex(8)


def usable(text: str) -> bool:
    """Short, and nothing in it that would break a line, a header or a shell."""
    return _FORM.fullmatch(text) is not None


def enter(told: str | None) -> str:
    """The running task belongs to this id from here on, or to a new one if it cannot be used."""
    chosen = told if told and usable(told) else new()
    _current.set(chosen)
    return chosen


def current() -> str:
    """The id of the call that is being answered; a new one outside of any."""
    return _current.get() or new()
