"""The methods of `corral.v1.Orchestrator`, read from the compiled .proto itself.

Both ends build on this table: the controller hangs a servicer into it, a client makes its stub
from it. Generated `_pb2_grpc` code would say the same and pin a version of grpcio besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from corral.contract import corral_pb2

if TYPE_CHECKING:
    from corral.core.limits import InputLimits

_DESCRIPTOR = corral_pb2.DESCRIPTOR.services_by_name["Orchestrator"]

SERVICE: str = _DESCRIPTOR.full_name
METHODS: tuple[str, ...] = tuple(method.name for method in _DESCRIPTOR.methods)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Both ends must agree: a batch of submissions with inline packages is one message."""

SHORT_CALLS = 1024
"""Calls of one client at the same time, beside its streams."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A new client must not inherit the pause that an old one's failed tries earned.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long one try to connect may take, whatever its name says. Where nobody listens that is
    # known at once; whoever listens may be busy, or far away.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # What comes of a call before anybody looked at its token. A window that grows by itself was
    # seen at 20 MB for each of a dozen calls.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # A quiet stream of a waiting job is pinged as often as the channel options say; without these
    # the server takes that for abuse and hangs up.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two controllers must never share a port.
    ("grpc.so_reuseport", 0),
)


def server_options(limits: InputLimits, connections: int) -> tuple[tuple[str, int], ...]:
    """The options of a server that takes so many connections, and waits for none that is silent."""
    message_bytes = limits.message_bytes
    return (
        ("grpc.server_handshake_timeout_ms", round(1000 * limits.header_s)),
        ("grpc.max_allowed_incoming_connections", connections),
        # Others wait at their client: more than the streams that there may be, and short calls.
        ("grpc.max_concurrent_streams", limits.streams + SHORT_CALLS),
        ("grpc.max_send_message_length", max(message_bytes, MAX_MESSAGE_BYTES)),
        ("grpc.max_receive_message_length", message_bytes),
        *SERVER_OPTIONS,
    )


ERROR_KEY = "corral-error"
"""Trailing metadata that carries the error's view as JSON beside the gRPC status."""


def _arity(method: Any) -> str:
    """How grpc names the four kinds of calls: `unary_unary`, `unary_stream`, …"""
    kinds = {False: "unary", True: "stream"}
    return f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"


def stub(channel: Any) -> Any:
    """An object with one multicallable per method, for a `grpc.aio` or a plain channel."""
    calls = {
        method.name: getattr(channel, _arity(method))(
            f"/{SERVICE}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        for method in _DESCRIPTOR.methods
    }
    return SimpleNamespace(**calls)


def _parser(message: Any) -> Any:
    """None for bytes that are no request: an exception would be logged as an internal error."""

    def parsed(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError:
            return None

    return parsed


Check = Callable[[str, Sequence[tuple[str, Any]]], Any]
"""Takes a method's name and a call's metadata; a handler that refuses the call, or None."""


class _Service(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Asks `refuse` before anything of a call but its metadata is read. Where a method takes one
    message, gRPC reads the whole of it before it asks the method."""

    def __init__(self, handlers: Mapping[str, Any], refuse: Check) -> None:
        self._handlers, self._refuse = handlers, refuse

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        service, _, name = details.method.removeprefix("/").rpartition("/")
        found = self._handlers.get(name) if service == SERVICE else None
        if found is None:
            return None
        return self._refuse(name, details.invocation_metadata or ()) or found


def handler(servicer: object, refuse: Check = lambda name, metadata: None) -> _Service:
    """What `server.add_generic_rpc_handlers` takes. The servicer has a coroutine, or an async
    generator, under each method's name; a missing one is an AttributeError now rather than
    UNIMPLEMENTED for somebody later."""
    handlers = {
        method.name: getattr(grpc, f"{_arity(method)}_rpc_method_handler")(
            getattr(servicer, method.name),
            request_deserializer=_parser(GetMessageClass(method.input_type)),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in _DESCRIPTOR.methods
    }
    return _Service(handlers, refuse)
