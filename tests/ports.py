"""Ports that a test chooses itself, because what listens there comes back after a restart."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""What the system gives to connections. One of those could have taken a port of it before the
server binds, or between its stop and its start."""


def free_port() -> int:
    below = int(RANGE.read_text("ascii").split()[0])
    while True:
        port = random.randrange(LOWEST, below)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
