"""How much of anything may come in at once, and how long it may take.

Most of it is not for anybody to set: no caller comes near, and whoever does gets an error that says
so. What users have reasons to set is in `settings.LimitSettings`.
"""

from __future__ import annotations

from msgspec import Struct


class InputLimits(Struct, frozen=True):
    body_bytes: int = 64_000_000
    """Of a REST body, uploads apart."""
    message_bytes: int = 64 << 20
    """Of a gRPC message. At the local door also, twice as many, of all calls that are not answered
    yet. Clients send up to as much."""
    frame_bytes: int = 8 << 20
    """Of a frame from a worker; a larger one closes its connection (code 1009)."""
    document_bytes: int = 4_000_000
    header_bytes: int = 65_536
    headers: int = 100
    header_s: float = 10.0
    """For the head of a request, from its first byte or from the connection on; also for a
    handshake of TLS or gRPC, and the token at the local door."""
    body_s: float = 30.0
    """For a body; of an upload, how long nothing of it may come."""
    keep_alive_s: float = 30.0
    streams: int = 5_000
    """Open at once, over gRPC and REST together."""
    jobs: int = 10_000
    """In one submission."""
    page: int = 1_000
    """Jobs on one page of a list; who asks for more gets so many."""
    result_bytes: int = 2_000_000_000
    labels: int = 64
    variables: int = 1_000
    requirements: int = 1_000
    secrets: int = 64
    inputs: int = 256
    models: int = 64
    arguments: int = 10_000
    text: int = 512
    """Characters of a name, user, batch, key, label, requirement."""
