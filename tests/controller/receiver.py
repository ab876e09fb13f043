"""A webhook's other side: a real HTTP server that keeps what it gets, with levers."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from tests.eventually import PATIENCE_S


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def delivery(self) -> str:
        return self.headers["Corral-Delivery"]

    def signed_by(self, secret: str) -> bool:
        """As a receiver would check it, from the documentation alone."""
        parts = dict(part.split("=", 1) for part in self.headers["Corral-Signature"].split(","))
        signed = parts["t"].encode() + b"." + self.body
        expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, parts["v1"])


class Receiver:
    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        """What to answer the next requests with; 0 hangs until the end, -1 speaks no HTTP."""
        self._change = threading.Condition()
        self._over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.take(dict(self.headers), body)
                if status == 0:
                    receiver._over.wait()
                    return
                if status < 0:
                    self.wfile.write(b"what?\r\n")
                    return
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{receiver.url}elsewhere")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def take(self, headers: dict[str, str], body: bytes) -> int:
        with self._change:
            status = self.statuses.pop(0) if self.statuses else 204
            self.received.append(Received(headers, body, status))
            self._change.notify_all()
            return status

    def until(self, count: int, event: str = "", status: int | None = None) -> list[Received]:
        """Waits for that many requests (of one event, answered with one status); what came."""

        def found() -> list[Received]:
            return [
                one
                for one in self.received
                if event in ("", one.headers["Corral-Event"]) and status in (None, one.status)
            ]

        with self._change:
            done = self._change.wait_for(lambda: len(found()) >= count, PATIENCE_S)
            assert done, f"{len(found())} of {count} within {PATIENCE_S:g} s"
            return found()

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
