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
from typing import Any

from corral.runtime import posix
from corral.runtime.frames import CANCEL, CHUNK, COALESCE_S, IDLE, STATE, WAITING
from corral.runtime.inbox import Inbox
from corral.runtime.road import Road


def main() -> int:
    posix.close_to_others()  # It may soon know secrets, and it holds the way to the agent.
    inbox = Inbox(posix.move_high(os.dup(0)), posix.move_high(int(sys.argv[1])))
    road = Road(posix.move_high(os.dup(1)))
    own_errors = posix.move_high(os.dup(2))
    line = inbox.first()
    if line is None:
        return 0
    if b'"secrets"' in line:
        hide_secrets(line, road)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from corral.runtime import attempt_process

        code = 1
        try:
            attempt_process.main(line, inbox, road, parent)
            code = 0
        except BaseException:
            # Nothing of ours may unwind into the supervisor's half of the program. This is no
            # word of a job, so it goes to the agent's own log.
            import traceback

            os.write(own_errors, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(code)
    road.close_inputs()
    return Supervisor(pid, inbox.fd, road).run()


def hide_secrets(config: bytes, road: Road) -> None:
    """Both processes redact: what is found first in the pipes may be found by either."""
    import json

    from corral.runtime.redaction import Redactor

    if values := json.loads(config).get("secrets"):
        road.hide(Redactor(values))


class Supervisor:
    def __init__(self, pid: int, agent_in: int, road: Road) -> None:
        self._pid = pid
        self._agent_in = agent_in
        self._road = road
        self._exit = posix.exit_fd(pid)
        posix.become_subreaper()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)

    def run(self) -> int:
        code = 0
        try:
            status = self._watch()
            if status:
                code = 1
            if status is not None:
                self._report(status)
        except OSError:
            code = 1  # The agent's end of the road is gone.
        posix.kill_descendants()
        return code

    def _terminate(self, *_: object) -> None:
        """Pass it on, whoever sent it. The job process raises once at most, so a second copy is
        harmless."""
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
        if self._exit is not None:
            poll.register(self._exit, select.POLLIN)
        quiet_until = 0.0
        while True:
            events = poll.poll(None if self._exit is not None else 50)
            for fd, event in events:
                if fd == self._agent_in:
                    return None
                if event == select.POLLHUP:  # Nobody is left who could write there.
                    poll.unregister(fd)
            if self._exit is None or any(fd == self._exit for fd, _ in events):
                status = self._ended()
                if status is not None:
                    return status
            wait = quiet_until - time.monotonic()
            if page[WAITING]:
                time.sleep(0.001)  # It wants the lock to end its attempt; do not race it.
            elif wait > 0:
                time.sleep(wait)
            moved = road.pump()
            quiet_until = time.monotonic() + COALESCE_S if 0 < moved < CHUNK else 0.0

    def _ended(self) -> int | None:
        """The wait status of the job process; strangers reparented to us are reaped by the way."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                return None
            if pid == self._pid:
                return status

    def _report(self, status: int) -> None:
        if self._road.page[STATE] == IDLE:
            return
        from corral.runtime.failures import died
        from corral.runtime.frames import frame

        # What the job process did not come to read is still there.
        cancelled = bool(self._road.page[CANCEL]) or Inbox(self._agent_in).cancel_came()
        failure: dict[str, Any] = died(os.waitstatus_to_exitcode(status), cancelled=cancelled)
        self._road.last(frame("error", failure=failure, retire=True))
