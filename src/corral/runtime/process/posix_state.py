"""What an attempt may change in a warm process of a POSIX system, beside what every system has."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

assert sys.platform != "win32"

from corral.runtime.process import posix
from corral.runtime.process.descendants import Children
from corral.runtime.process.state import ProcessState

if TYPE_CHECKING:
    from corral.runtime.channels.runner_ports import RoadPort

WATCHED_SIGNALS = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH, signal.SIGPROF,
    signal.SIGVTALRM,
)  # fmt: skip
LOOKS, LOOK_S = 10, 0.001
"""At processes that a job left behind, before they count as such: they may be about to end."""
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
LIMITS = (
    resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
)  # fmt: skip


class PosixState(ProcessState):
    signals = WATCHED_SIGNALS

    def __init__(self, road: RoadPort) -> None:
        super().__init__(road)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = _limits()
        self._processors = os.sched_getaffinity(0)
        # Who loses its parent becomes a child of the supervisor, which reaps at any time. This
        # process could not: it cannot tell them from children that the job waits for itself.
        self._beside = Children(os.getppid())
        seen = bool(self._beside.look())
        if seen:
            self._beside.fd = posix.move_high(self._beside.fd)
        posix.become_subreaper(really=not seen)

    def _keep(self, fd: int) -> int:
        # High, as everything of ours: a job that closes all it can name closes the low ones.
        return posix.move_high(fd)

    def quiet(self) -> None:
        for timer in TIMERS:
            signal.setitimer(timer, 0)
        super().quiet()

    def restore(self) -> None:
        super().restore()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def enter(self, environ: Mapping[str, str], own: Mapping[str, str]) -> None:
        self._processors = os.sched_getaffinity(0)  # The agent may move us between attempts.
        super().enter(environ, own)

    def children_left(self) -> bool:
        if posix.reap():
            return True
        for _ in range(LOOKS):
            # What has ended may still be there: the supervisor may not have come to reap it.
            if not self._beside.several() or not self._beside.living(beside=os.getpid()):
                return False
            time.sleep(LOOK_S)
        return True

    def bounds_moved(self) -> bool:
        return _limits() != self._limits or os.sched_getaffinity(0) != self._processors


def _limits() -> list[object]:
    return [os.getpriority(os.PRIO_PROCESS, 0), *map(resource.getrlimit, LIMITS)]
