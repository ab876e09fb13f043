"""A ComfyUI over real HTTP and WebSocket, as version 0.7.0 was seen to behave; levers for its bad
days. It renders small images that the graph alone decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import email
import json
import threading
import time
import uuid
from base64 import b64encode
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, PlainTextResponse

from tests.eventually import eventually
from tests.fakes.comfyui_nodes import described, picture, png
from tests.fakes.comfyui_prompts import checked, refused
from tests.fakes.comfyui_run import Run
from tests.ports import free_port

FILES = {
    "checkpoints": ["anime.safetensors", "SDXL/sdxl_1.0.safetensors", "refiner.safetensors"],
    "vae": ["good.vae.safetensors"],
    "loras": ["styles/ink.safetensors", "grain.safetensors"],
    "diffusion_models": ["flux/flux1-dev.safetensors"],
    "unet_gguf": ["flux/flux1-dev-Q4.gguf"],
    "upscale_models": ["4x-UltraSharp.pth"],
    "ultralytics": ["bbox/face_yolov8n.pt", "segm/person.pt"],
}


class Hold:
    """Sampling stands still before a step until somebody lets it go on."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.reached = threading.Event()
        self.released = threading.Event()


class FakeComfyUI:
    def __init__(self, packs: bool = False) -> None:
        self.files = {folder: list(names) for folder, names in FILES.items()}
        self.packs = packs
        self.step_s = 0.0
        self.preview = png(picture("preview", (16, 16)))
        self.hold: Hold | None = None
        self.failing: dict[str, tuple[str, str]] = {}
        """A node's class to the exception that it raises."""
        self.names_taken = False
        """Somebody else's image lies under whatever name is uploaded."""
        self.own_ids = False
        """An old server: it ignores a client's prompt_id, interrupts whatever runs, neither says
        that it succeeded nor when, and its history knows no status."""
        self.blocking: dict[str, str] = {}
        """A node's class to what it says when it gives nothing on: no failure for the server."""
        self.faces = 1
        """In every image that is detailed: each is sampled for itself."""
        self.answer: tuple[int, str] | None = None
        """To every submission, instead of taking it."""
        self.under = ""
        """A proxy has it under this path, and nothing else."""
        self.login = ""
        """What that proxy wants to hear: `name:password`."""
        self.most_bytes = 100 << 20
        """Of an upload: --max-upload-size, or the proxy's own limit."""
        self.loses_answers = False
        """It takes a submission and a proxy in front of it says that it did not."""
        self.deaf = False
        """No new WebSocket is let in."""
        self.mute = False
        """Connections stand and nothing comes through them any more."""
        self.no_last_word = False
        """Ends are announced, and nothing comes after that."""
        self.forgets = False
        """It forgets what it was given, as if it restarted each time."""
        self.lag_s = 0.02
        """From the announcement of an end until the history has it."""
        self.outputs: dict[tuple[str, str], bytes] = {}
        self.inputs: dict[str, bytes] = {}
        """By the name that a LoadImage has for them: `a/b.png`, `a/b.png [temp]`."""
        self.submitted: list[dict[str, Any]] = []
        self.executed: list[str] = []
        """Classes of nodes that were executed and not cached."""
        self.interrupts = 0
        """That somebody asked for."""
        self.previews = 0
        """That it sent."""
        self.sockets_taken = 0
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._life: Life | None = None

    def start(self) -> None:
        self._life = Life(self)
        self._life.start()

    def stop(self) -> None:
        """Ends as a killed process does: what it knew of queue and history is gone."""
        life, self._life = self._life, None
        if life is not None:
            life.stop()
        self.outputs = {key: data for key, data in self.outputs.items() if key[0] == "output"}
        self.inputs = {
            name: data for name, data in self.inputs.items() if not name.endswith(" [temp]")
        }

    @property
    def life(self) -> Life:
        assert self._life is not None
        return self._life

    def wait_for_history(self, count: int) -> list[dict[str, Any]]:
        eventually(lambda: len(self.life.history) >= count, f"{count} in the history")
        return list(self.life.history.values())

    def wait_for_pending(self, count: int) -> None:
        eventually(lambda: len(self.life.pending) >= count, f"{count} pending")

    def wait_for_socket(self, count: int) -> None:
        """Since the first start."""
        eventually(lambda: self.sockets_taken >= count, f"{count} sockets")

    def wait_for_idle(self) -> None:
        eventually(lambda: self.life.running is None and not self.life.pending, "it is idle")

    def drop_sockets(self) -> None:
        """The connections break; the work goes on and nobody hears of it."""
        self.life.drop_sockets()

    def stall(self, seconds: float) -> None:
        """It answers nobody for so long, as while a thread of it holds Python's lock."""
        assert self.life.loop is not None
        self.life.loop.call_soon_threadsafe(time.sleep, seconds)


class Life:
    """From one start of the server to its end."""

    def __init__(self, fake: FakeComfyUI) -> None:
        self.fake = fake
        self.pending: list[list[Any]] = []
        self.running: list[Any] | None = None
        self.history: dict[str, Any] = {}
        self.sockets: dict[str, WebSocket] = {}
        self.cache: dict[str, tuple[list[Any], dict[str, Any] | None]] = {}
        self.interrupt = threading.Event()
        self.over = threading.Event()
        self.number = 0
        self.files_made = 0
        self.lock = threading.RLock()
        self.loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            self._app(), host="127.0.0.1", port=fake.port, log_level="critical",
            ws="websockets-sansio", lifespan="off", timeout_graceful_shutdown=1,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.threads = [
            threading.Thread(target=self._serve, daemon=True),
            threading.Thread(target=self._work, daemon=True),
        ]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()
        eventually(lambda: self.server.started, "it serves")

    def _serve(self) -> None:
        asyncio.run(self._served())

    async def _served(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve()

    def stop(self) -> None:
        self.over.set()
        self.drop_sockets()
        self.server.should_exit = True
        for thread in self.threads:
            thread.join(10)

    def drop_sockets(self) -> None:
        sockets, self.sockets = list(self.sockets.values()), {}

        async def close() -> None:
            for one in sockets:
                with contextlib.suppress(Exception):
                    await one.close(1012)

        if self.loop is not None:
            asyncio.run_coroutine_threadsafe(close(), self.loop).result(5)

    # What it says ----------------------------------------------------------------------------

    def say(self, event: str, data: dict[str, Any], client: str | None) -> None:
        """Whoever is not there now never hears of it."""
        self.send(json.dumps({"type": event, "data": data}), client)

    def send(self, said: str | bytes, client: str | None) -> None:
        async def sending() -> None:
            heard = list(self.sockets.values()) if client is None else [self.sockets.get(client)]
            for one in heard:
                with contextlib.suppress(Exception):
                    if one is not None and isinstance(said, str):
                        await one.send_text(said)
                    elif one is not None and isinstance(said, bytes):
                        await one.send_bytes(said)

        if self.loop is not None and not self.over.is_set() and not self.fake.mute:
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(sending(), self.loop).result(5)

    # What it is asked ------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = FastAPI()
        fake = self.fake

        def kept_out(headers: Any) -> bool:
            login = b64encode(fake.login.encode()).decode()
            return bool(fake.login) and headers.get("authorization") != f"Basic {login}"

        @app.middleware("http")
        async def proxied(request: Request, call_next: Any) -> Response:
            if kept_out(request.headers):
                return PlainTextResponse("401 Authorization Required", 401)
            path = request.scope["path"]
            if not path.startswith(f"{fake.under}/"):
                return PlainTextResponse("404 Not Found", 404)
            request.scope["path"] = path.removeprefix(fake.under)
            if int(request.headers.get("content-length", 0)) > fake.most_bytes:
                return PlainTextResponse("413 Request Entity Too Large", 413)
            answer: Response = await call_next(request)
            return answer

        @app.middleware("http")
        async def same_origin(request: Request, call_next: Any) -> Response:
            origin = request.headers.get("origin")
            if origin is not None and origin.split("://")[-1] != request.headers.get("host"):
                return Response(status_code=403)
            answer: Response = await call_next(request)
            return answer

        @app.websocket("/{path:path}")
        async def events(websocket: WebSocket, path: str) -> None:
            at = f"/{path}" == f"{fake.under}/ws"
            if (
                not at
                or kept_out(websocket.headers)
                or fake.deaf
                or websocket.headers.get("origin") is not None
            ):
                await websocket.close(1008)
                return
            await websocket.accept()
            client = websocket.query_params.get("clientId") or uuid.uuid4().hex
            self.sockets[client] = websocket
            fake.sockets_taken += 1
            status = {"status": {"exec_info": {"queue_remaining": len(self.pending)}}}
            await websocket.send_text(
                json.dumps({"type": "status", "data": {**status, "sid": client}})
            )
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                while True:
                    await websocket.receive()
            if self.sockets.get(client) is websocket:
                del self.sockets[client]

        @app.post("/prompt")
        async def prompt(request: Request) -> Response:
            if fake.answer is not None:
                return PlainTextResponse(fake.answer[1], fake.answer[0])
            try:
                body = json.loads(await request.body())
            except ValueError:
                return PlainTextResponse("500 Internal Server Error", 500)
            answer = await asyncio.to_thread(self._take, body)
            return Response(status_code=502) if fake.loses_answers else answer

        @app.get("/queue")
        async def queue() -> Any:
            with self.lock:
                running = [self.running] if self.running is not None else []
                return JSONResponse({"queue_running": running, "queue_pending": self.pending})

        @app.post("/queue")
        async def change_queue(request: Request) -> Response:
            doomed = (await request.json()).get("delete", [])
            with self.lock:
                self.pending = [item for item in self.pending if item[1] not in doomed]
            return Response()

        @app.post("/interrupt")
        async def interrupt(request: Request) -> Response:
            raw = await request.body()
            named = json.loads(raw).get("prompt_id") if raw else None
            fake.interrupts += 1
            with self.lock:
                running = self.running[1] if self.running is not None else None
                if fake.own_ids or named in (None, running):
                    self.interrupt.set()
            return Response()

        @app.get("/history/{prompt_id}")
        async def history(prompt_id: str) -> Any:
            found = self.history.get(prompt_id)
            said = json.dumps({prompt_id: found} if found is not None else {})
            return Response(said, media_type="application/json")

        @app.get("/object_info/{kind}")
        async def object_info(kind: str) -> Any:
            known = described(fake.files, fake.packs)
            return JSONResponse({kind: known[kind]} if kind in known else {})

        @app.get("/system_stats")
        async def system_stats() -> Any:
            return JSONResponse(
                {
                    "system": {"comfyui_version": "0.7.0", "pytorch_version": "2.9.0+cpu",
                               "python_version": "3.12.3 (main, Nov  6 2025) [GCC 13.3.0]"},
                    "devices": [{"name": "cpu", "type": "cpu", "index": None,
                                 "vram_free": 8_000_000_000}],
                }
            )  # fmt: skip

        @app.post("/upload/image")
        async def upload(request: Request) -> Any:
            form = _form(request.headers["content-type"], await request.body())
            (name, data), folder = form["image"], form["subfolder"][1].decode()
            kind = form["type"][1].decode()
            stem, dot, end = name.rpartition(".")

            def key() -> str:
                path = f"{folder}/{name}" if folder else name
                return path if kind == "input" else f"{path} [{kind}]"

            if fake.names_taken:
                fake.inputs.setdefault(key(), png(picture("somebody else's", (64, 64))))
            n = 1
            while fake.inputs.get(key(), data) != data:
                name = f"{stem} ({n}){dot}{end}"
                n += 1
            fake.inputs[key()] = data
            return JSONResponse({"name": name, "subfolder": folder, "type": kind})

        @app.get("/view")
        async def view(filename: str, subfolder: str = "", type: str = "output") -> Response:
            path = f"{subfolder}/{filename}" if subfolder else filename
            data = fake.outputs.get((type, path))
            if data is None:
                return Response(status_code=404)
            return Response(data, media_type="image/png")

        return app

    def _take(self, body: dict[str, Any]) -> Response:
        graph = body.get("prompt")
        ours = str(uuid.uuid4())
        named = body.get("prompt_id", ours)
        good, node_errors, refusal = checked(self.fake, graph)
        if not self.fake.own_ids and str(uuid.UUID(named)) != named:
            _, _, refusal = refused("invalid_prompt_id", "prompt_id must be a valid UUID")
        if refusal is not None:
            return refusal
        prompt_id = ours if self.fake.own_ids else named
        extra = dict(body.get("extra_data", {}))
        if "client_id" in body:
            extra["client_id"] = body["client_id"]
        with self.lock:
            self.number += 1
            self.fake.submitted.append({"prompt_id": prompt_id, "prompt": graph, **extra})
            if not self.fake.forgets:
                self.pending.append([self.number, prompt_id, graph, extra, good])
        return JSONResponse(
            {"prompt_id": prompt_id, "number": self.number, "node_errors": node_errors}
        )

    def _work(self) -> None:
        while not self.over.is_set():
            with self.lock:
                if self.pending:
                    self.running = self.pending.pop(0)
                    self.interrupt.clear()
            if self.running is None:
                time.sleep(0.002)
                continue
            Run(self, self.running).go()

    def ended(self, prompt_id: str, entry: dict[str, Any]) -> None:
        with self.lock:
            self.running = None
            if not self.over.is_set():
                self.history[prompt_id] = entry


def _form(kind: str, body: bytes) -> dict[str, tuple[str, bytes]]:
    """A multipart form: the file name and content of each field."""
    message = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    found = {}
    for part in message.walk():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(data, bytes):
            found[name] = (part.get_filename() or "", data)
    return found
