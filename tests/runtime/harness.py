"""A real runner process and a small controller for its transfers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import cloudpickle

from corral.agent.runners.orders import encode_line
from corral.runtime.channels.configuration import encode
from corral.runtime.order import Cancel, Order
from tests.eventually import PATIENCE_S

Frame = dict[str, Any]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Controller:
    """The transfer endpoints of a controller, in memory, with a few levers."""

    token = "attempt-token"

    def __init__(self) -> None:
        self.packages: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self.checkpoint: bytes | None = None
        self.takes_checkpoints = threading.Event()
        """Cleared, they come and are not answered."""
        self.takes_checkpoints.set()
        self.requests: list[str] = []
        self.connections = 0
        self.refuse: list[int] = []
        """Statuses to answer the next requests with."""
        controller = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                controller.connections += 1

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                self._guarded(controller._get)

            def do_PUT(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # The other side gave up.
                    self.close_connection = True
                    return
                self._guarded(lambda path: controller._put(path, body))

            def _guarded(self, act: Callable[[str], tuple[int, bytes]]) -> None:
                controller.requests.append(f"{self.command} {unquote(self.path)}")
                if controller.refuse:
                    status, body = controller.refuse.pop(0), b""
                elif self.headers["Authorization"] != f"Bearer {controller.token}":
                    status, body = 401, b'{"error": {"message": "Not this token."}}'
                else:
                    status, body = act(unquote(self.path).split("/", 4)[4])
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def _get(self, path: str) -> tuple[int, bytes]:
        if path == "checkpoint":
            return (404, b"") if self.checkpoint is None else (200, self.checkpoint)
        data = self.packages.get(path.removeprefix("packages/"))
        return (404, b"") if data is None else (200, data)

    def _put(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "bundle":
            return 200, json.dumps(self._unbundled(body)).encode()
        if path == "checkpoint":
            assert self.takes_checkpoints.wait(PATIENCE_S)
            self.checkpoint = body
        self.stored[path] = body
        answer = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
        return 200, json.dumps(answer).encode()

    def _unbundled(self, body: bytes) -> list[Frame]:
        line, _, data = body.partition(b"\n")
        answers = []
        for one in json.loads(line):
            part, data = data[: one["size"]], data[one["size"] :]
            self.stored[f"artifacts/{one['name']}"] = part
            answers.append({"sha256": hashlib.sha256(part).hexdigest(), "size": len(part)})
        return answers

    @property
    def artifacts(self) -> dict[str, bytes]:
        prefix = "artifacts/"
        return {
            name.removeprefix(prefix): body
            for name, body in self.stored.items()
            if name.startswith(prefix)
        }

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Runner:
    """A runner process, as the agent holds one."""

    def __init__(
        self,
        kit: Path,
        folder: Path,
        controller: Controller,
        *,
        spawn: bool = False,
        **config: Any,
    ) -> None:
        self.spawn = spawn
        self._controller = controller
        self.folder = folder
        self._count = 0
        self._pending = b""
        self.frames: list[Frame] = []
        folder.mkdir(parents=True, exist_ok=True)
        # A socket, as asyncio and uvloop use for a child's stdin.
        self._mouth, ear = socket.socketpair()
        self._orders, hand = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        runner = str(kit / "corral" / "runtime" / "runner.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", runner, "spawn" if spawn else str(hand.fileno())],
            pass_fds=(hand.fileno(),),
            stdin=ear.fileno(),
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        ear.close()
        hand.close()
        config = {
            "limits": {"memory_bytes": None, "cpus": None},
            "isolate": True,
            "python": sys.executable,
            "write_paths": [str(folder)],
            "environ": {},
            **config,
            "read_paths": [sys.prefix, sys.base_prefix, *config.get("read_paths", ())],
        }
        self._mouth.sendall(encode(config))
        self.ready = self.next()
        assert self.ready["frame"] == "ready", self.ready

    # --- speaking ------------------------------------------------------------------------------

    def say(self, word: Frame) -> None:
        self._mouth.sendall(json.dumps(word).encode() + b"\n")

    def order(self, order: Order[Frame]) -> None:
        line = encode_line(order)
        if self.spawn:
            return self._mouth.sendall(line)
        for start in range(0, len(line), 32 * 1024):
            self._orders.sendall(line[start : start + 32 * 1024])

    def start(
        self, function: Callable[..., Any], *args: Any, checkpoint: str = "", **kwargs: Any
    ) -> Path:
        work = {
            "type": "function",
            "function": self.blob(cloudpickle.dumps(function)),
            "arguments": self.blob(cloudpickle.dumps((args, kwargs))),
        }
        return self.start_work(work, checkpoint=checkpoint)

    def start_script(
        self, files: dict[str, str], entry: str = "main.py", argv: tuple[str, ...] = ()
    ) -> Path:
        return self.start_work(
            {
                "type": "script",
                "package": self.blob(zipped(files)),
                "entry": entry,
                "argv": list(argv),
            }
        )

    def start_work(
        self,
        work: Frame,
        *,
        checkpoint: str = "",
        env: dict[str, str] | None = None,
        folder: Path | None = None,
        **more: Any,
    ) -> Path:
        """Send one attempt; its folder, which is new unless one is given."""
        self._count += 1
        folder = folder or self.folder / f"a{self._count}"
        for name in ("work", "output", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        order: dict[str, Any] = {
            "job": f"job-{self._count}",
            "attempt": self._count,
            "document": {"work": work, "env": env or {}},
            "endpoint": {"url": self._controller.url},
            "token": self._controller.token,
            "work_dir": str(folder),
            "checkpoint": checkpoint,
            **more,
        }
        self.order(cast("Order[Any]", order))
        return folder

    def blob(self, data: bytes) -> Frame:
        sha256 = hashlib.sha256(data).hexdigest()
        blob: Frame = {"sha256": sha256, "size": len(data)}
        if len(data) <= 8192:
            blob["data"] = base64.b64encode(data).decode()
        else:
            self._controller.packages[sha256] = data
        return blob

    # --- listening -----------------------------------------------------------------------------

    def next(self, patience_s: float = PATIENCE_S) -> Frame:
        assert self.process.stdout is not None
        until = time.monotonic() + patience_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            assert ready, f"no frame within {patience_s:g} s"
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                raise EOFError("the runner is gone")
            self._pending += data
        line, self._pending = self._pending.split(b"\n", 1)
        frame: Frame = json.loads(line)
        return frame

    def until(self, *kinds: str, patience_s: float = PATIENCE_S) -> Frame:
        """Frames up to the first of one of these kinds; all of them are in `frames`."""
        while True:
            frame = self.next(patience_s)
            self.frames.append(frame)
            if frame["frame"] in kinds:
                return frame

    def end(self, patience_s: float = PATIENCE_S) -> Frame:
        """The last frame of the attempt; those before it are in `frames`."""
        self.frames = []
        return self.until("result", "error", patience_s=patience_s)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Frame:
        self.start(function, *args, **kwargs)
        return self.end()

    def value(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function that must succeed; its result."""
        frame = self.run(function, *args, **kwargs)
        assert frame["frame"] == "result", frame
        return self.load(frame)

    def load(self, frame: Frame) -> Any:
        blob = frame["result"]
        data = (
            base64.b64decode(blob["data"]) if "data" in blob else self._controller.stored["result"]
        )
        assert hashlib.sha256(data).hexdigest() == blob["sha256"]
        assert len(data) == blob["size"]
        return pickle.loads(data)

    def failure(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Frame:
        """Run a function that must fail; its failure."""
        frame = self.run(function, *args, **kwargs)
        assert frame["frame"] == "error", frame
        failure: Frame = frame["failure"]
        return failure

    def kinds(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["frame"] == kind]

    def output(self, stream: str = "stdout") -> bytes:
        return b"".join(
            base64.b64decode(frame["data"]) if "data" in frame else frame["text"].encode()
            for frame in self.kinds("output")
            if frame["stream"] == stream
        )

    # --- ending --------------------------------------------------------------------------------

    def say_cancel(self) -> None:
        self._mouth.sendall(
            encode_line(Cancel(job=f"job-{self._count}", attempt=self._count, cancel=True))
        )

    def cancel(self) -> None:
        """As the agent does it: the line first, then the signal to the whole tree."""
        self.say_cancel()
        if self.spawn:
            with contextlib.suppress(BrokenPipeError):  # the first word may have been enough
                self.say({"stop": True})
        else:
            os.killpg(self.process.pid, signal.SIGTERM)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def gone(self) -> int:
        return self.process.wait(PATIENCE_S)

    def hang_up(self) -> None:
        self._mouth.close()

    def close(self) -> None:
        assert self.process.stdout is not None
        self._mouth.close()
        self._orders.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.stdout.close()


def zipped(files: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return held.getvalue()


def lines(data: bytes) -> Iterator[str]:
    return iter(data.decode().splitlines())
