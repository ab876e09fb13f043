"""Sockets, the event loop and the HTTP server, as a controller needs them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from starlette.types import ASGIApp

from corral.api.http_protocol import limited
from corral.api.workers.worker_socket import Frames
from corral.core.errors import HomeUnusable
from corral.core.limits import InputLimits
from corral.joining import addresses
from corral.joining.invitation import bracketed
from corral.settings import Settings

ANYWHERE = ("0.0.0.0", "::")
ENOUGH = 65_536
"""No more descriptors are asked for: some programs of jobs look at each they could have."""
HTTP_SHARE, GRPC_SHARE, LOCAL_SHARE = 0.5, 0.25, 0.125
"""The parts of them for connections over HTTP (workers' sockets among them), over gRPC and at the
local door: strangers who only connect must leave enough for the journal."""


def raised_limit() -> int:
    """How many descriptors this process may have, once it has asked for what it may get."""
    if sys.platform == "win32":
        return ENOUGH
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Beyond it nothing is said in the clear."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_address(host: str) -> str:
    """The address under which other machines most likely reach this one."""
    if host not in ANYWHERE:
        return host
    family = family_of(host)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        # Nothing is sent: the system only says which way it would go.
        asking.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))
        return str(asking.getsockname()[0])
    for interface in addresses.interfaces().values():  # no way leads further than its own network
        for one in interface.addresses:
            if interface.is_up and family_of(one) == family and not is_loopback(one):
                return one
    return socket.gethostname()


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def numeric(host: str) -> frozenset[str]:
    """The addresses that a host stands for."""
    try:
        return frozenset({str(ipaddress.ip_address(host))})
    except ValueError:
        with contextlib.suppress(OSError):
            return frozenset(str(one[4][0]) for one in socket.getaddrinfo(host, None))
    return frozenset()


def own_names(settings: Settings) -> set[str]:
    """What others may call us, beside the addresses that this machine has."""
    hostname = socket.gethostname().lower()
    short = hostname.split(".")[0]
    named = {hostname, short, f"{short}.local", settings.advertise.lower()}
    if settings.host not in ANYWHERE:
        named.add(settings.host.lower())
    return named - {""}


def loop_factory(handshake_s: float) -> Any:
    if sys.platform == "win32":
        return None
    import uvloop

    class Loop(uvloop.Loop):
        """uvicorn cannot be told how long a TLS handshake may take."""

        async def create_server(self, *args: Any, ssl: Any = None, **more: Any) -> Any:
            if ssl is not None:
                more.setdefault("ssl_handshake_timeout", handshake_s)
            return await super().create_server(*args, ssl=ssl, **more)

    return Loop


def listen(host: str, port: int, flag: str) -> socket.socket:
    listening = socket.socket(family_of(host))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise HomeUnusable(
            f"Cannot listen on {host}:{port} ({error.strerror}). Stop what uses it, or choose "
            f"another port with {flag}."
        ) from error
    listening.listen(1024)
    return listening


def rpc_server(
    settings: Settings,
    options: Any,
    handler: grpc.GenericRpcHandler[Any, Any],
    credentials: grpc.ServerCredentials | None,
) -> tuple[grpc.aio.Server, int]:
    rpc = grpc.aio.server(options=options)
    rpc.add_generic_rpc_handlers((handler,))
    # gRPC says on stderr, in its own words, that a port is taken: ask first, in ours.
    listen(settings.host, settings.grpc_port, "--grpc-port").close()
    door = f"{bracketed(settings.host)}:{settings.grpc_port}"
    if credentials is None:
        return rpc, rpc.add_insecure_port(door)
    return rpc, rpc.add_secure_port(door, credentials)


class Http(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the controller's, not the HTTP server's


def http_server(
    app: ASGIApp, limits: InputLimits, share: int, certificate: Path | None, key: Path | None
) -> Http:
    return Http(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=limited(limits, share),
            timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]
            ws=Frames,
            ws_max_size=limits.frame_bytes,
            ws_per_message_deflate=False,  # a little of it can be very much
            ws_ping_interval=None,  # a worker's heartbeats say that it is there
            timeout_graceful_shutdown=1,
            proxy_headers=False,  # an address that counts is the one that really asks
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    )
