"""How many files and connections this process may hold, and who gets which part of them: strangers
who only connect must leave enough for the journal."""

from __future__ import annotations

import sys

ENOUGH = 65_536
"""More is not asked for: some programs that jobs start look at each one that they could have."""


def raised_limit() -> int:
    """How many descriptors this process may have, once it has asked for what it may get."""
    if sys.platform == "win32":
        return ENOUGH
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def http_share(limit: int) -> int:
    """Connections over HTTP, workers' sockets among them."""
    return limit // 2


def grpc_share(limit: int) -> int:
    return limit // 4


def local_share(limit: int) -> int:
    """Connections at the local door. What is left then is for the controller's own files."""
    return limit // 8
