"""One stage at the server, on a thread of its own, so that the caller can listen for a cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from corral.runtime.pipeline.backend import Rendered, StageFailed
from corral.runtime.pipeline.webui.server import Down, Late, ServerState, WebUIServer
from corral.runtime.pipeline.webui.turn import Turn

POLL_S = 0.2
SELDOM_S = 2.0
SHARE = 50
"""The longer a call takes, the less often it is asked about: a server on a processor has better
things to do."""
VERDICT_S = 2.0
"""How long a call may take to end by itself after the server was found dead."""
STALLED_S = 900.0
"""A server that is idle for so long while our call is open has lost it. Its first model it loads,
and hashes, before it says that it is busy: minutes from a slow disk."""
OTHERS_S = 900.0
"""How long somebody else's image is waited for."""
IMAGES = ("txt2img", "img2img", "extra-single-image")
STOPPING_S = 60.0
"""How long a server may take to notice an interrupt; it loads a model first."""


class Stopped(Exception):
    """The caller does not want it any more."""


class Errand:
    """Runs `work`, which calls the server through it. It has the turn until it ends, even where
    its caller is gone: an interrupt that is still on its way must not meet the next one's job."""

    def __init__(self, server: WebUIServer, turn: Turn, work: Callable[[Errand], Rendered]) -> None:
        self._server = server
        self._turn = turn
        self._work = work
        self.ended: Future[Rendered] = Future()
        self.stopping = threading.Event()
        self.heard: tuple[float, str] = (0.0, "")
        """Progress of this stage, for the thread that may tell it."""
        self.share = (0, 1)
        """Which of how many calls this is."""
        self.begun = False
        """An image was asked for."""
        self.ended_began = ""
        """When the server began what it did last for us, by its own clock, where nobody else was
        there since."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="webui", daemon=True).start()

    def stop(self, patience_s: float) -> None:
        """Soon: the errand itself goes on interrupting until the server has noticed."""
        self.stopping.set()
        wait((self.ended,), patience_s)

    def call(self, path: str, body: dict[str, Any]) -> tuple[Any, float]:
        """The one long request, watched while it runs. Its answer counts only if nobody stopped
        it: that of an interrupted one looks like any other, with a part of the image."""
        before = self.idle()
        self._turn.write(busy=True)
        self.begun |= path in IMAGES
        sent = self._send(path, body)
        untouched = not before.interrupted
        began = looked = alive = time.monotonic()
        fresh = False
        while not wait((sent,), POLL_S).done:
            if self.stopping.is_set():
                self._interrupt(sent)
                raise Stopped
            now = time.monotonic()
            if now - looked < min((now - began) / SHARE, SELDOM_S):
                continue
            looked = now
            state = self._look(sent)
            if state is None:
                continue
            if not state.idle:
                alive = time.monotonic()
                untouched = untouched or not state.interrupted
                fresh = fresh or (state.step, state.steps) != (before.step, before.steps)
                self._hear(state, fresh)
            elif time.monotonic() - alive > STALLED_S:
                raise Down(
                    f"The WebUI at {self._server.url} does nothing, and does not answer either."
                )
        self._turn.write(busy=False)
        if self.stopping.is_set():
            raise Stopped
        try:
            answer = sent.result()
        except StageFailed as failed:
            if not isinstance(failed, Down):
                # An upscaling that breaks off leaves the server saying that it is busy, for ever;
                # what has begun just now waits in line before us anyway.
                state = self._now()
                self._turn.write(over="" if state is None or state.idle else state.began)
            raise
        after = self._now() if untouched else None
        self.ended_began = after.began if after is not None and after.idle else ""
        # The sign stays until the next job begins.
        if after is not None and after.interrupted:
            raise StageFailed(
                "exception",  # the same server may well do it the next time
                f"Somebody interrupted the WebUI at {self._server.url}: the image is unfinished.",
            )
        return answer

    def reach(self) -> ServerState:
        """One that is found down fails its job at once, which has it started again. The job waits
        where it keeps nobody from anything: in the queue."""
        while True:
            with suppress(Late):
                return self._server.state()
            if self.stopping.wait(POLL_S):
                raise Stopped

    def idle(self) -> ServerState:
        """Waits until the server is. What was left there by one of us who died is interrupted, and
        again: an interrupt that comes before its job has begun is forgotten. What somebody else
        does there is waited for."""
        ours = bool(self._turn.read().get("busy"))
        until = time.monotonic() + OTHERS_S
        while time.monotonic() < until:
            if self.stopping.is_set():
                raise Stopped
            with suppress(Late):
                state = self._server.state()
                if state.idle or (state.began and state.began == self._turn.read().get("over")):
                    return state
                if ours:
                    self._server.interrupt()
                else:
                    self.heard = (self.heard[0], "waiting: the WebUI works for somebody else")
            self.stopping.wait(POLL_S)
        raise StageFailed(
            "stage_missing",  # not down: nobody wants it started again in the middle of something
            f"The WebUI at {self._server.url} has been busy with something else for "
            f"{OTHERS_S / 60:g} minutes.",
        )

    def quiet(self, patience_s: float) -> ServerState:
        """Idle soon, also for one whose caller is gone. Raises Late."""
        until = time.monotonic() + patience_s
        while True:
            state = self._server.state()
            if state.idle:
                return state
            if time.monotonic() > until:
                raise Late
            time.sleep(POLL_S)

    def _send(self, path: str, body: dict[str, Any]) -> Future[tuple[Any, float]]:
        """A request that nobody can break off."""
        sent: Future[tuple[Any, float]] = Future()

        def run() -> None:
            try:
                sent.set_result(self._server.generate(path, body))
            except BaseException as error:
                sent.set_exception(error)

        threading.Thread(target=run, name="webui-call", daemon=True).start()
        return sent

    def _look(self, sent: Future[Any]) -> ServerState | None:
        try:
            return self._server.state()
        except Late:
            return None
        except Down:
            if wait((sent,), VERDICT_S).done:  # the call itself knows better what happened
                return None
            raise
        except StageFailed:
            return None  # progress is a courtesy; the call is what counts

    def _hear(self, state: ServerState, fresh: bool) -> None:
        """Until the job has begun to count, its steps are those of the job before."""
        place, count = self.share
        if not fresh or state.jobs < 0 or not state.steps:
            self.heard = (max(place / count, self.heard[0]), "starting")
            return
        done = (place + min(max(state.fraction, 0.0), 1.0)) / count
        self.heard = (max(done, self.heard[0]), f"step {state.step} of {state.steps}")

    def _interrupt(self, sent: Future[Any]) -> None:
        until = time.monotonic() + STOPPING_S
        while time.monotonic() < until:
            self._server.interrupt()
            if wait((sent,), POLL_S).done:
                self._turn.write(busy=False)
                return

    def _now(self) -> ServerState | None:
        """After a call; None where it does not say."""
        try:
            return self._server.state()
        except (Late, StageFailed):
            return None

    def _run(self) -> None:
        try:
            rendered = self._work(self)
        except BaseException as error:  # raised again where the result is asked for
            if isinstance(error, Down) and error.gone:
                self._turn.write(busy=False)
            self._turn.release()
            self.ended.set_exception(error)
        else:
            self._turn.release()
            self.ended.set_result(rendered)
