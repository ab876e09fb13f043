"""The outer of a runner's two processes, the one the agent started: it pumps output and watches.

It runs no user code, so nothing a job does can stop it from framing output, from reporting how the
job process died, or from ending the whole tree when the agent is gone.
"""

from __future__ import annotations

import sys

assert sys.platform != "win32"

import os
import select
import signal
import time
from collections.abc import Sequence

from corral.runtime.channels.frames import CANCEL, CHUNK, COALESCE_S, IDLE, STATE, SURVIVED, WAITING
from corral.runtime.channels.inbox import Inbox
from corral.runtime.channels.road import Road
from corral.runtime.sandbox.rules import Hold


class Supervisor:
    def __init__(
        self, pid: int, agent_in: int, road: Sequence[int], hold: Hold, secrets: dict[str, str]
    ) -> None:
        self._pid = pid
        self._agent_in = agent_in
        self._road = Road(road)
        self._road.close_inputs()
        if secrets:
            from corral.runtime.channels.redaction import Redactor

            # Both processes redact: what is found first in the pipes may be found by either.
            self._road.hide(Redactor(secrets))
        self._hold = hold
        self._held_bytes = 0
        """By the job process or one that it waited for, at most."""
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, self._end_now)
        signal.signal(signal.SIGTERM, self._terminate)

    def run(self) -> int:
        code = 0
        try:
            status = self._watch()
            if status is None:
                # One by one first: the kernel lets a job start something in another group.
                self._hold.kill()
                self._hold.end()
            else:
                code = 1 if status else 0
                self._report(status)
        except OSError:
            code = 1  # The agent's end of the road is gone.
        return code if self._hold.kill() else SURVIVED

    def _end_now(self, *_: object) -> None:
        """The agent has waited long enough."""
        os._exit(1 if self._hold.kill() else SURVIVED)

    def _terminate(self, *_: object) -> None:
        """Pass it on. The job process raises once at most, so a second copy is harmless."""
        if self._road.page[STATE] == IDLE:
            return  # It came too late for the attempt it meant.
        try:
            os.kill(self._pid, signal.SIGTERM)
        except OSError:
            return

    def _watch(self) -> int | None:
        """Pump until the job process ends (its wait status) or the agent is gone (None)."""
        road, page = self._road, self._road.page
        poll = select.poll()
        for fd in (road.output, road.errors, road.words):
            poll.register(fd, select.POLLIN)
        # Its lines are the job process's to read; a hang-up is reported without asking.
        poll.register(self._agent_in, 0)
        poll.register(self._woken, select.POLLIN)
        quiet_until = 0.0
        status = self._ended()  # It may have been before anybody told us.
        while status is None:
            for fd, event in poll.poll():
                if fd == self._agent_in:
                    return None
                if fd == self._woken:
                    os.read(self._woken, CHUNK)
                    status = self._ended()
                elif event == select.POLLHUP:  # Nobody is left who could write there.
                    poll.unregister(fd)
            if status is not None:
                break
            wait = quiet_until - time.monotonic()
            if page[WAITING]:
                time.sleep(0.001)  # It wants the lock to end its attempt; do not race it.
            elif wait > 0:
                self._let_gather(wait)
            moved = road.pump()
            quiet_until = time.monotonic() + COALESCE_S if 0 < moved < CHUNK else 0.0
        return status

    def _let_gather(self, seconds: float) -> None:
        """An end is told at once, and whoever waits for the order of its output goes on."""
        hurry = self._road.hurry
        if hurry in select.select((self._woken, hurry), (), (), seconds)[0]:
            os.read(hurry, CHUNK)

    def _ended(self) -> int | None:
        """The wait status of the job process; strangers reparented to us are reaped by the way."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                return None
            if pid == self._pid:
                self._held_bytes = used.ru_maxrss * 1024
                return status

    def _report(self, status: int) -> None:
        if self._road.page[STATE] == IDLE:
            return
        from corral.runtime.channels.frames import error_frame
        from corral.runtime.failures import died

        # What the job process did not come to read is still there.
        cancelled = bool(self._road.page[CANCEL]) or Inbox(self._agent_in).cancel_came()
        code = os.waitstatus_to_exitcode(status)
        failure = died(code, cancelled=cancelled, held_bytes=self._held_bytes)
        self._road.last(error_frame(failure, retire=True))
