"""A job that somebody follows from its submission on: what it tells, its end, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from corral.cli.terminal import output
from corral.core.errors import CorralError
from corral.core.text import in_grace

if TYPE_CHECKING:
    from corral.contract.views import Ended, Event
    from corral.sdk.handles import AsyncHandle

WAITING_S = 2.0
"""How long a job may wait before that is told."""
QUIET_S = 10.0
"""How long a job may tell nothing before its worker is looked at."""


async def follow(handle: AsyncHandle, *, as_json: bool) -> int:
    """Shows everything until the job ends, or the person leaves; the exit code. Ctrl-C is an event
    like any other, so that it never strikes in the middle of something."""
    screen = JsonLines() if as_json else Screen()
    interrupts: asyncio.Queue[str] = asyncio.Queue()
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C just ends the command
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGINT, interrupts.put_nowait, "interrupt"
        )
    showing = asyncio.create_task(_show(handle, screen))
    waiting = asyncio.get_running_loop().call_later(WAITING_S, screen.say_waiting, handle.id)
    looking = asyncio.create_task(_look_at_worker(handle, screen))
    cancelled = False
    try:
        while True:
            interrupted = asyncio.create_task(interrupts.get())
            await asyncio.wait({showing, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                interrupted.cancel()
                return exit_code(showing.result())
            if cancelled:
                return 130  # asked to stop, and not willing to wait for it
            screen.hold()
            decision = await _ask(handle.id, interrupts)
            if decision != "follow" and decision != "cancel":
                return 0 if decision == "detach" else 130
            if decision == "cancel":
                cancelled = True
                output.say(f"Cancelling job {handle.id} …", style="dim")
                await handle.cancel()
            screen.release()
    finally:
        waiting.cancel()
        looking.cancel()
        showing.cancel()


async def _show(handle: AsyncHandle, screen: Screen) -> Ended:
    from corral.contract.views import Ended

    async for event in handle.events():
        await screen.free.wait()
        screen.show(event)
        if isinstance(event, Ended):
            return event
    raise AssertionError("a job's events end with its end")


async def _look_at_worker(handle: AsyncHandle, screen: Screen) -> None:
    """A job that tells nothing may have lost its worker, of which there is no event yet."""
    while True:
        screen.quiet = True
        await asyncio.sleep(QUIET_S)
        if not screen.quiet:
            continue
        with contextlib.suppress(CorralError):
            view = await handle.status()
            screen.say_silent(view.worker, view.worker_silent_s)


async def _ask(job_id: str, interrupts: asyncio.Queue[str]) -> str:
    """What Ctrl-C meant; a second one means cancel. Where nobody can answer, the job goes on."""
    goes_on = (
        f"Job {job_id} goes on. Follow it with `corral logs -f {job_id}`, cancel it with "
        f"`corral cancel {job_id}`."
    )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.say(goes_on)
        return "interrupted"
    loop = asyncio.get_running_loop()
    output.say("\n[d]etach, [c]ancel, or Enter to go on following? ", end="")
    loop.add_reader(sys.stdin, lambda: interrupts.put_nowait(sys.stdin.readline() or "detach"))
    try:
        answer = (await interrupts.get()).strip().lower()
    finally:
        loop.remove_reader(sys.stdin)
    if answer == "interrupt":
        output.say("")
    if answer.startswith("d"):
        output.say(goes_on)
        return "detach"
    return "cancel" if answer.startswith("c") or answer == "interrupt" else "follow"


class Screen:
    """A job on a terminal: its output as it is, its progress below, its end as a sentence."""

    def __init__(self) -> None:
        from corral.cli.terminal.bar import Bar

        self.free = asyncio.Event()
        self.free.set()
        self._bar = Bar()
        self._waits = True
        self.quiet = True
        """Whether nothing was shown since somebody last looked."""
        self._silent = False

    def hold(self) -> None:
        """Until `release` nothing is shown: a question stands there."""
        self.free.clear()
        self._bar.close()

    def release(self) -> None:
        self.free.set()

    def say_waiting(self, job_id: str) -> None:
        from corral.sdk.start_notes import waiting

        if self._waits and self.free.is_set():
            output.say(waiting(job_id), style="dim")

    def say_silent(self, worker: str, silent_s: float) -> None:
        """Once for each time that it falls silent."""
        if silent_s and not self._silent and self.free.is_set():
            self._bar.clear()
            output.say(in_grace(worker, silent_s), style="yellow")
        self._silent = bool(silent_s)

    def show(self, event: Event) -> None:
        from corral.contract import views
        from corral.sdk.start_notes import failed_attempt

        self.quiet = False
        self._waits = self._waits and getattr(event, "state", "") == "queued"
        if isinstance(event, views.Output):
            self._bar.write(event.stream, event.data, event.skipped)
        elif isinstance(event, views.Progress):
            self._bar.update(event.fraction, event.message)
        elif failed := failed_attempt(event):
            self._bar.clear()
            output.say(failed, style="yellow")
        elif isinstance(event, views.Ended):
            self._bar.close()
            _say_end(event)


class JsonLines(Screen):
    """A job for a program: each event as one line of JSON."""

    def say_waiting(self, job_id: str) -> None:
        """The events say it."""

    def say_silent(self, worker: str, silent_s: float) -> None:
        """What is no event is not told."""

    def show(self, event: Event) -> None:
        from corral.contract.plain import plain_event

        output.show_json_line(plain_event(event))


def _say_end(ended: Ended) -> None:
    from corral.sdk.remote_errors import error_of

    if ended.state != "succeeded":
        failure = ended.failure
        if failure and failure.traceback and failure.code == "exception":
            output.say(failure.traceback.rstrip())
        output.say(error_of(ended.job_id, ended.state, failure).message, style="red")
    elif sys.stderr.isatty():
        output.say(f"Job {ended.job_id} succeeded in {output.span(ended.seconds)}.", style="dim")


def exit_code(ended: Ended) -> int:
    """The script's own code; as shells have it, 128 and the signal's number for a killed one."""
    if ended.state == "succeeded":
        return 0
    if ended.state == "cancelled":
        return 130
    code = ended.failure.exit_code if ended.failure else None
    if not code:
        return 1
    return 128 - code if code < 0 else code
