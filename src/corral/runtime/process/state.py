"""What one attempt may change in a warm process and the next one must not find."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.runtime.attempt_loop import RoadPort


def _stream(raw: io.FileIO, errors: str) -> TextIO:
    """A text stream on a captured descriptor; each line goes out when it is complete."""
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=True)


class ProcessState:
    """Remembers a clean process and brings it back after each attempt."""

    signals: tuple[int, ...] = system.SIGNALS

    def __init__(self, road: RoadPort) -> None:
        self._road = road
        self._null = self._keep(os.open(os.devnull, os.O_RDONLY))
        os.dup2(self._null, 0)
        road.capture()
        self._open_streams()
        self._environ = dict(os.environ)
        self._given: Mapping[str, str] = {}
        self._entered = dict(_raw_environ())
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._found_path, self._path = sys.path, list(sys.path)
        self._found_argv, self._argv = sys.argv, list(sys.argv)
        self._threads = _lasting_threads()
        self._depth = sys.getrecursionlimit()
        self._handlers = {number: getsignal(number) for number in self.signals}

    def _keep(self, fd: int) -> int:
        return fd

    def _open_streams(self) -> None:
        self._stdin = open(0, closefd=False)  # noqa: SIM115
        output, errors = self._captured()
        self._stdout, self._stderr = (
            _stream(output, "surrogateescape"),
            _stream(errors, "backslashreplace"),
        )
        self._set_streams()

    def _captured(self) -> tuple[io.FileIO, io.FileIO]:
        return io.FileIO(1, "w", closefd=False), io.FileIO(2, "w", closefd=False)

    def _set_streams(self) -> None:
        sys.stdin = sys.__stdin__ = self._stdin  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = self._stdout  # type: ignore[misc,assignment]
        sys.stderr = sys.__stderr__ = self._stderr  # type: ignore[misc,assignment]

    def quiet(self) -> None:
        """User code is over: what it set running or narrowed must not meet our own code, and
        whatever Python still holds of its output goes into the pipes."""
        if sys.getrecursionlimit() != self._depth:
            sys.setrecursionlimit(self._depth)
        for stream in (sys.stdout, sys.stderr, self._stdout, self._stderr):
            try:
                stream.flush()
            except Exception:  # noqa: S112 - closed, or replaced by something that cannot
                continue
        system.flush_c()

    def restore(self) -> None:
        os.dup2(self._null, 0)
        self._road.capture()
        if self._stdin.closed or self._stdout.closed or self._stderr.closed:
            self._open_streams()
        elif sys.stdout is not self._stdout or sys.stderr is not self._stderr:
            self._set_streams()
        if _raw_environ() != self._entered:
            self._restore_environ()
        os.umask(self._umask)
        if sys.path is not self._found_path or sys.path != self._path:
            sys.path = self._found_path
            sys.path[:] = self._path
        if sys.argv is not self._found_argv or sys.argv != self._argv:
            sys.argv = self._found_argv
            sys.argv[:] = self._argv
        if not gc.isenabled():
            gc.enable()
        socket = sys.modules.get("socket")
        if socket is not None:
            socket.setdefaulttimeout(None)
        for number, handler in self._handlers.items():
            if getsignal(number) != handler:
                signal.signal(number, handler)

    def enter(self, environ: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Set the variables of the next attempt: Corral's, which it overwrites each time, and the
        job's own, which must be gone afterwards. What the agent gave the process stands: a job
        cannot show itself another job's GPU."""
        if sys.platform == "win32":
            environ = {**environ, "TEMP": environ["TMPDIR"], "TMP": environ["TMPDIR"]}
        for name, value in environ.items():
            if self._given.get(name) != value:
                os.environ[name] = value
        self._given = environ
        self._entered = dict(_raw_environ())
        if sys.platform == "win32":  # where names of variables are the same in any case
            own = {name.upper(): value for name, value in own.items()}
        for name in own.keys() - self._environ.keys():
            os.environ[name] = own[name]

    def look_first_in(self, folder: str) -> None:
        """From now on modules are found there first, also by whatever Python a job starts."""
        self._path.insert(0, folder)
        sys.path.insert(0, folder)
        paths = os.pathsep.join(filter(None, (folder, self._environ.get("PYTHONPATH", ""))))
        self._environ["PYTHONPATH"] = os.environ["PYTHONPATH"] = paths
        self._entered = dict(_raw_environ())

    def _restore_environ(self) -> None:
        self._given = {}
        for name in os.environ.keys() - self._environ.keys():
            del os.environ[name]
        for name, value in self._environ.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    def threads_left(self) -> bool:
        """Threads of the attempt that somebody meant to wait for; daemons live on by design."""
        return threading.active_count() > self._threads and _lasting_threads() > self._threads

    def children_left(self) -> bool:
        """Processes that the attempt started and did not wait for."""
        return system.children_left()

    def bounds_moved(self) -> bool:
        """The attempt changed what the system lets this process do: not always to be undone."""
        return False


def _lasting_threads() -> int:
    return sum(not thread.daemon for thread in threading.enumerate())


def _raw_environ() -> dict[Any, Any]:
    """The environment without decoding every value: this is asked after every attempt."""
    raw: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]
    return raw


if sys.platform != "win32":
    import resource

    from corral.runtime.channels import in_order
    from corral.runtime.process import posix

    LOOKS, LOOK_S = 10, 0.001
    """At processes that a job left behind, before they count as such: they may be about to end."""
    TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    LIMITS = (
        resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS,
        resource.RLIMIT_DATA,
    )  # fmt: skip

    class PosixState(ProcessState):
        """And what only such a system has."""

        signals = (
            signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD,
            signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH,
            signal.SIGPROF, signal.SIGVTALRM,
        )  # fmt: skip

        def __init__(self, road: RoadPort) -> None:
            super().__init__(road)
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            self._limits = _limits()
            self._processors = os.sched_getaffinity(0)
            # Who loses its parent becomes a child of the supervisor, which reaps at any time. This
            # process could not: it cannot tell them from children that the job waits for itself.
            self._beside = posix.Children(os.getppid())
            seen = bool(self._beside.look())
            if seen:
                self._beside.fd = posix.move_high(self._beside.fd)
            posix.hold_descendants(really=not seen)

        def _captured(self) -> tuple[io.FileIO, io.FileIO]:
            turns = in_order.Turns(self._road.for_children[-1])
            return in_order.OrderedFile(1, turns), in_order.OrderedFile(2, turns)

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
            if posix.children_left():
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
