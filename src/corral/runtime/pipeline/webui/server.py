"""One WebUI server: small questions, the one long call, and what no answer means."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.bounded import IMAGES, Bounded
from corral.runtime.pipeline.webui import failures

ANSWER_S = 30.0
"""For small questions; a server that loads a model, or renders on all its processors, is slow to
answer them. Whatever waits for the server's work is no small question: `generate`."""
LONG_S = 300.0
CONNECT_S = 5.0
INTERRUPT_S = 1.0
ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30))
        if hasattr(socket, name)
    ),
]
"""An image may take longer than what stands between keeps a silent connection."""
CRASHED = 3
"""Timeouts in a row that are a crash; fewer are a busy server."""


class Late(Exception):
    """No answer in time, which by itself means nothing."""


class Down(StageFailed):
    """It is not there, or not any more."""

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__("backend_down", message)
        self.gone = gone
        self.hangs = not gone
        """And what it did is gone with it. One that hangs may come back to it."""


class ServerState(NamedTuple):
    """`/progress`, which is about whatever the server does and names no job."""

    jobs: int
    """0: idle. -1: a job has begun and does not know yet how much it is."""
    fraction: float
    step: int
    steps: int
    interrupted: bool
    """Or skipped, which leaves as little of an image."""
    began: str = ""
    """When its job did, by the server's own clock."""

    @property
    def idle(self) -> bool:
        return self.jobs == 0


class WebUIServer:
    def __init__(
        self, url: str, username: str, password: str, *, answer_s: float = ANSWER_S
    ) -> None:
        self.url = url.rstrip("/")
        self._answer_s = answer_s
        # A fresh connection each time: one that was kept may be closed by the server at any
        # moment, which would look like its death.
        self._client = httpx.Client(
            base_url=f"{self.url}/",
            auth=(username, password) if username or password else None,
            timeout=httpx.Timeout(answer_s, connect=min(CONNECT_S, answer_s)),
            transport=Bounded(
                limits=httpx.Limits(max_keepalive_connections=0),
                socket_options=ALIVE,
                trust_env=False,
            ),
            trust_env=False,
        )
        self._counting = threading.Lock()
        self._late = 0

    def get(self, path: str) -> Any:
        answer = self._insist("GET", f"sdapi/v1/{path}")
        try:
            return self._read(answer)
        except StageFailed as failed:
            if failed.code != "bad_job":
                raise
            raise StageFailed(  # no job has any part in it
                "stage_missing",
                f"{failed.message}. A setting in its config.json may be of the wrong kind.",
            ) from failed

    def find(self, path: str, *, long: bool = False) -> Any | None:
        """From the root of the server; None where there is nothing. `long`: it may have as much to
        say as an image."""
        timeout = httpx.Timeout(LONG_S, connect=CONNECT_S) if long else None
        answer = self._insist("GET", path, timeout=timeout)
        return None if answer.status_code == 404 else self._read(answer)

    def generate(self, path: str, body: dict[str, Any]) -> tuple[Any, float]:
        """The answer and the server's own seconds. It takes as long as it takes: whether the
        server still lives is for those to find out who ask for its progress meanwhile."""
        # Late, it could only be to connect: then nothing was sent.
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        answer = self._insist("POST", f"sdapi/v1/{path}", body, timeout=timeout)
        taken = answer.elapsed.total_seconds()
        with suppress(ValueError):
            taken = min(float(answer.headers.get("X-Process-Time", taken)), taken)
        return self._read(answer), taken

    def change(self, settings: dict[str, Any]) -> None:
        """A new model, or VAE, is loaded before it answers."""
        timeout = httpx.Timeout(LONG_S, connect=CONNECT_S)
        self._read(self._insist("POST", "sdapi/v1/options", settings, timeout=timeout))

    def state(self) -> ServerState:
        """Raises Late: the next one may be in time."""
        answer = self._read(
            self._ask("GET", "sdapi/v1/progress", params={"skip_current_image": "true"})
        )
        state = answer.get("state") or {}
        return ServerState(
            jobs=int(state.get("job_count") or 0),
            fraction=float(answer.get("progress") or 0.0),
            step=int(state.get("sampling_step") or 0),
            steps=int(state.get("sampling_steps") or 0),
            interrupted=bool(state.get("interrupted") or state.get("skipped")),
            began=str(state.get("job_timestamp") or ""),
        )

    def interrupt(self) -> None:
        """Whatever it does now. One that comes before the job has begun is forgotten."""
        try:
            self._client.post("sdapi/v1/interrupt", timeout=INTERRUPT_S)
        except httpx.HTTPError:
            return  # whether the job has ended is seen elsewhere

    def close(self) -> None:
        self._client.close()

    def _insist(self, *asked: Any, timeout: httpx.Timeout | None = None) -> httpx.Response:
        while True:
            with suppress(Late):
                return self._ask(*asked, timeout=timeout)

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: dict[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Response:
        try:
            answer = self._client.request(
                method,
                path,
                json=body,
                params=params,
                timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
                extensions=None if timeout is None else dict(IMAGES),
            )
        except httpx.TimeoutException as error:
            with self._counting:
                self._late += 1
                late = self._late
            if late >= CRASHED:
                raise Down(
                    f"The WebUI at {self.url} gave no answer {late} times in a row "
                    f"({self._answer_s:g} s each). It hangs, or its machine is off."
                ) from error
            raise Late from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Down(_no_answer(self.url, error), gone=True) from error
        with self._counting:
            self._late = 0
        return answer

    def _read(self, answer: httpx.Response) -> Any:
        if answer.status_code != 200:
            raise failures.of_answer(self.url, answer.status_code, answer.text)
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            said = answer.content[:100].decode(errors="replace")
            raise StageFailed(
                "stage_missing", f"What answers at {self.url} is no WebUI: {said!r}"
            ) from error


def _no_answer(url: str, error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        return f"Nothing answers at {url} ({error}). Start the WebUI there with --api."
    return f"The WebUI at {url} closed the connection without an answer: it died ({error})."
