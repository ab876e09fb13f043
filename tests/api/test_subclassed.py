"""What Corral uses of the inside of other libraries is still there. A newer version that moved it
fails here, with the place to look at, before it fails in the dark."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import requires, version

import pytest
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.connection import Connection
from websockets.protocol import Protocol

USED = [
    (
        "uvicorn",
        HttpToolsProtocol,
        "src/corral/api/http_protocol.py",
        "connection_made connection_lost data_received on_header on_headers_complete "
        "send_400_response connections cycle loop scope transport",
    ),
    (
        "uvicorn",
        RequestResponseCycle,
        "src/corral/api/http_protocol.py",
        "more_body response_complete",
    ),
    (
        "uvicorn",
        WebSocketsSansIOProtocol,
        "src/corral/api/workers/worker_socket.py",
        "data_received handle_connect handle_parser_exception send_receive_event_to_app "
        "resume_writing close_sent close_timer conn frames queue scope transport writable",
    ),
    ("uvicorn", Server, "src/corral/server/listening.py", "capture_signals"),
    (
        "websockets",
        Protocol,
        "src/corral/api/workers/worker_socket.py and src/corral/agent/connection.py",
        "close_sent data_to_send fail send_binary send_pong state",
    ),
    (
        "websockets",
        Connection,
        "src/corral/agent/connection.py",
        "data_received keepalive paused ping ping_interval process_event protocol resume_writing "
        "transport",
    ),
]


@pytest.mark.parametrize(("library", "kind", "place", "names"), USED)
def test_what_is_used_is_there(library: str, kind: type, place: str, names: str) -> None:
    own = re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(kind))
    gone = {name for name in names.split() if not hasattr(kind, name)} - set(own)
    assert not gone, (
        f"{library} {version(library)} has no {', '.join(sorted(gone))} in {kind.__name__}, which "
        f"{place} uses. Adapt that, or lower the bound of {library} in pyproject.toml."
    )


@pytest.mark.parametrize("library", ["uvicorn", "websockets"])
def test_a_version_nobody_tried_is_not_installed(library: str) -> None:
    [needed] = [one for one in requires("corral") or () if re.match(rf"{library}\b", one)]
    assert "<" in needed, f"an upper bound for {library}: its inside is used"
