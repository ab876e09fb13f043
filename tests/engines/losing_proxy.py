"""A proxy on loopback that passes requests on and now and then drops the reply, with its
connection."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit


class LosingProxy:
    """Every second reply to what an attempt told is lost."""

    def __init__(self, url: str) -> None:
        self.lost = self.told = 0
        proxy, target = self, urlsplit(url).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                self._pass_on()

            def do_PUT(self) -> None:
                self._pass_on()

            def do_POST(self) -> None:
                self._pass_on()

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(target, timeout=60)
                headers = {"Authorization": self.headers["Authorization"]}
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
                connection.close()
                if b'"messages"' in body:
                    proxy.told += 1
                    if proxy.told % 2:
                        proxy.lost += 1
                        self.close_connection = True
                        return
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> LosingProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
