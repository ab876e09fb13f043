"""Correlation ids: one short word that a client's call, every line about it on the controller and
on the worker, the job's own environment and the answer share.

The client chooses it (the SDK makes one for each call), or the controller does. It is kept with
the job, so it is still there after a restart.
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
    """Everything that the running task does from here on belongs to this id; where the caller
    told none that can be used, to a new one."""
    chosen = told if told and usable(told) else new()
    _current.set(chosen)
    return chosen


def current() -> str:
    """The id of the call that is being answered; a new one outside of any."""
    return _current.get() or new()
