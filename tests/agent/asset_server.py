"""A controller, or a store, that serves assets over real sockets, with levers to go wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AssetServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Door)
        self.data = data
        self.cut_after: list[int] = []
        """Each request takes the first: so many bytes, then the connection is gone."""
        self.statuses: list[int] = []
        """Each request takes the first, and nothing else is answered."""
        self.spoilt: int = 0
        """So many answers have one byte changed."""
        self.redirect = ""
        self.ranges = True
        self.asked: list[tuple[str, str | None, str | None]] = []
        """Path, token and range of every request."""
        self.came = threading.Event()
        self.gate: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Door(BaseHTTPRequestHandler):
    server: AssetServer

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers["Range"]
        server.asked.append((self.path, self.headers["Authorization"], wanted))
        server.came.set()
        if server.gate is not None:
            server.gate.wait(20)
        if server.statuses and (status := server.statuses.pop(0)) != 200:
            return self._plain(status)
        if server.redirect:
            self.send_response(307)
            self.send_header("Location", server.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        self._send(int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0)

    def _send(self, start: int) -> None:
        server = self.server
        data = server.data
        if server.spoilt:
            server.spoilt -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        if not server.ranges:
            start = 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = server.cut_after.pop(0) if server.cut_after else len(data)
        self.wfile.write(data[start : start + cut])
        if cut < len(data) - start:
            self.close_connection = True

    def _plain(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(data: bytes) -> Iterator[AssetServer]:
    with AssetServer(data) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
