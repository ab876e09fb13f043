"""One ComfyUI server over HTTP and WebSocket: what it answers, not what we make of it."""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from msgspec import Struct
from websockets.exceptions import InvalidStatus, WebSocketException

from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.blocking_websocket import BlockingWebSocket
from corral.runtime.pipeline.bounded import IMAGES, Bounded
from corral.runtime.pipeline.comfyui import errors

ANSWER_S = 10.0
CONNECT_S = 2.0
CLOSE_S = 0.2
STOP_S = 1.5
"""How long we wait to see a stopped prompt gone."""
INTERRUPT_S = 0.5
FOLDER = "corral"
"""Of the server's folders, for images that we bring."""
MESSAGE_LIMIT = 256 << 20
"""A preview of a large image is far more than the library's usual limit of 1 MiB."""


NO_COMFYUI = "what answers there is no ComfyUI"


class Unanswered(Exception):
    """No answer, or one that only a server in trouble gives."""


class Refused(Unanswered):
    """By what answers there, which stays so: no outage."""


class Busy(Unanswered):
    """It took the connection and then said nothing: it is there. One thread of it answers, and
    that waits for Python's lock while another reads a model, or while all cores calculate."""


class FoundPrompt(Struct, frozen=True):
    """Where a prompt is: ended with an entry in the history, in the queue, or nowhere at all."""

    entry: dict[str, Any] | None = None
    running: bool = False
    waiting_behind: int | None = None

    @property
    def lost(self) -> bool:
        return self.entry is None and not self.running and self.waiting_behind is None


class Events:
    """The server's own words while it works, to one client id. What it said to nobody is gone."""

    def __init__(self, url: str, client_id: str, headers: dict[str, str], answer_s: float) -> None:
        self.client_id = client_id
        self._headers, self._answer_s = headers, answer_s
        scheme, rest = url.split("://", 1)
        self._url = f"ws{scheme[4:]}://{rest}/ws?{urlencode({'clientId': client_id})}"
        self.connections = 0
        """So far: more than one where a connection broke."""
        self._socket: BlockingWebSocket | None = None

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> None:
        """No Origin is sent: a foreign one is refused."""
        try:
            self._socket = BlockingWebSocket(
                self._url,
                additional_headers=self._headers,
                open_timeout=self._answer_s,
                close_timeout=CLOSE_S,
                compression=None,
                max_size=MESSAGE_LIMIT,
                proxy=None,
            )
            self.connections += 1
        except InvalidStatus as error:
            said = f"{error}; a proxy before it must let WebSockets through to /ws"
            raise (Unanswered if error.response.status_code >= 500 else Refused)(said) from error
        except (OSError, EOFError, WebSocketException) as error:
            said = str(error) or type(error).__name__
            if isinstance(error, TimeoutError) and "handshake" in said:
                raise Busy(said) from error
            raise Unanswered(said) from error

    def next(self, timeout_s: float) -> tuple[str, dict[str, Any]] | None:
        """Its name and data; None: nothing came, or nothing for us (a preview). Raises Unanswered
        when the connection is gone: whatever was said meanwhile must be asked for."""
        if self._socket is None:
            raise Unanswered("not connected")
        try:
            said = self._socket.recv(timeout_s)
        except TimeoutError:
            return None
        except (OSError, WebSocketException) as error:
            self.close()
            raise Unanswered(str(error) or type(error).__name__) from error
        if isinstance(said, bytes):
            return None
        try:
            message = json.loads(said)
            return str(message["type"]), dict(message["data"])
        except (KeyError, TypeError, ValueError):
            return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class ComfyUIServer:
    def __init__(
        self, url: str, username: str, password: str, *, answer_s: float = ANSWER_S
    ) -> None:
        self.url = url.rstrip("/")
        self._answer_s = answer_s
        self._headers = {}
        if username or password:
            pair = b64encode(f"{username}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(answer_s, connect=CONNECT_S),
            transport=Bounded(trust_env=False),
            trust_env=False,
        )
        self._about: dict[str, dict[str, Any] | None] = {}

    def events(self, client_id: str) -> Events:
        return Events(self.url, client_id, self._headers, min(CONNECT_S, self._answer_s))

    def submit(self, nodes: dict[str, Any], client_id: str, prompt_id: str) -> str:
        """The prompt's id: ours, but for old servers that give their own. Raises StageFailed where
        the graph, or a part of it, is refused, and Unanswered where nobody knows."""
        body = {
            "prompt": nodes,
            "client_id": client_id,
            "prompt_id": prompt_id,
            # Nobody looks at a preview of every step. Older servers send them all the same.
            "extra_data": {"preview_method": "none"},
        }
        answer = self._send("POST", "/prompt", json=body)
        try:
            said = json.loads(answer.content)
        except ValueError:
            said = None
        if answer.status_code != 200:
            raise errors.refused(answer.status_code, said, answer.text)
        if not isinstance(said, dict) or "prompt_id" not in said:
            raise Unanswered(NO_COMFYUI)
        given = str(said["prompt_id"])
        if said.get("node_errors"):
            # Whatever else the graph asks for was accepted and would be rendered for nobody.
            self.stop(given)
            raise errors.invalid(said["node_errors"])
        return given

    def find(self, prompt_id: str) -> FoundPrompt:
        entry = self._entry(prompt_id)
        if entry is None:
            queue = self.get("/queue")
            if prompt_id in _ids(queue.get("queue_running", ())):
                return FoundPrompt(running=True)
            pending = _ids(sorted(queue.get("queue_pending", ()), key=lambda item: item[0]))
            if prompt_id in pending:
                return FoundPrompt(waiting_behind=pending.index(prompt_id))
            # It may have ended between the two questions.
            entry = self._entry(prompt_id)
        return FoundPrompt(entry=entry)

    def _entry(self, prompt_id: str) -> dict[str, Any] | None:
        entry: dict[str, Any] | None = self.get(f"/history/{prompt_id}").get(prompt_id)
        return entry

    def stop(self, prompt_id: str) -> None:
        """Whether it waits or runs. Never raises: there is nobody left to tell."""
        until = time.monotonic() + STOP_S
        interrupt_at = 0.0
        while True:
            try:
                queue = self.get("/queue", timeout=STOP_S)
                if prompt_id in _ids(queue.get("queue_pending", ())):
                    self._send("POST", "/queue", json={"delete": [prompt_id]}, timeout=STOP_S)
                elif prompt_id not in _ids(queue.get("queue_running", ())):
                    return
                elif time.monotonic() >= interrupt_at:
                    # Only now, and not all the time: old servers interrupt whatever runs. Once may
                    # be too early: what begins forgets what was said before.
                    named = {"prompt_id": prompt_id}
                    self._send("POST", "/interrupt", json=named, timeout=STOP_S)
                    interrupt_at = time.monotonic() + INTERRUPT_S
            except (Unanswered, StageFailed):
                return
            if time.monotonic() > until:
                return
            time.sleep(0.05)

    def upload(self, png: bytes, place: str) -> str:
        """The name for a LoadImage node: the server may have chosen another than ours. What lies
        in `temp` goes when the server ends; not every node of a pack finds it there."""
        name = f"{hashlib.sha256(png).hexdigest()[:32]}.png"
        files = {"image": (name, png, "image/png")}
        where = {"subfolder": FOLDER, "type": place}
        given = _read(self._ask("POST", "/upload/image", files=files, data=where))
        folder, named = given.get("subfolder", ""), str(given["name"])
        kept = given.get("type", "input")
        annotation = f" [{kept}]" if kept != "input" else ""
        return f"{folder}/{named}{annotation}" if folder else f"{named}{annotation}"

    def view(self, image: dict[str, Any]) -> bytes | None:
        """The file of an output; None: it is there no longer."""
        named = {field: image.get(field, "") for field in ("filename", "subfolder", "type")}
        answer = self._ask("GET", "/view", params=named, extensions=dict(IMAGES), or_none=True)
        return None if answer.status_code == 404 else answer.content

    def missing(self, kinds: Iterable[str]) -> list[str]:
        """Those of these nodes that the server does not have, asked anew where it seems so."""
        lacking = [kind for kind in kinds if self.about(kind) is None]
        for kind in lacking:
            self.forget(kind)
        return [kind for kind in lacking if self.about(kind) is None]

    def about(self, kind: str) -> dict[str, Any] | None:
        if kind not in self._about:
            self._about[kind] = self.get(f"/object_info/{quote(kind, safe='')}").get(kind)
        return self._about[kind]

    def forget(self, kind: str = "") -> None:
        """Somebody may have added a model, or a node: look again before saying no."""
        if kind:
            self._about.pop(kind, None)
        else:
            self._about.clear()

    def field(self, kind: str, name: str) -> Sequence[Any] | None:
        inputs = (self.about(kind) or {}).get("input", {})
        for group in ("required", "optional"):
            if name in inputs.get(group, {}):
                described: Sequence[Any] = inputs[group][name]
                return described
        return None

    def choices(self, kind: str, name: str) -> list[str]:
        """What a field takes: a list in its type's place, or newer nodes' `options`."""
        described = self.field(kind, name) or ()
        if described and isinstance(described[0], list):
            return [str(one) for one in described[0]]
        if len(described) > 1 and isinstance(described[1], dict):
            return [str(one) for one in described[1].get("options", ())]
        return []

    def get(self, path: str, **rest: Any) -> Any:
        return _read(self._ask("GET", path, **rest))

    def _ask(self, *asked: str, or_none: bool = False, **rest: Any) -> httpx.Response:
        """`or_none`: there may be nothing, which is an answer too."""
        answer = self._send(*asked, **rest)
        if answer.status_code != 200 and not (or_none and answer.status_code == 404):
            raise errors.refused(answer.status_code, None, answer.text)
        return answer

    def _send(self, method: str, path: str, **rest: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **rest)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise Busy(f"{type(error).__name__} at {path}") from error
        except httpx.HTTPError as error:
            raise Unanswered(str(error) or type(error).__name__) from error
        if answer.status_code in (502, 503, 504):
            raise Unanswered(f"status {answer.status_code}")
        return answer

    def close(self) -> None:
        self._http.close()


def _read(answer: httpx.Response) -> Any:
    """Its JSON is Python's, with NaN where a node was given one: not everybody's."""
    try:
        return json.loads(answer.content)
    except ValueError as error:
        raise Unanswered(NO_COMFYUI) from error


def _ids(queue: Iterable[Sequence[Any]]) -> list[str]:
    return [str(item[1]) for item in queue]


def versions_of(stats: dict[str, Any]) -> dict[str, str]:
    system = stats.get("system", {})
    named = {"comfyui": "comfyui_version", "pytorch": "pytorch_version", "python": "python_version"}
    # Python's goes on with who compiled it, and when.
    return {name: str(system[of]).split()[0] for name, of in named.items() if system.get(of)}
