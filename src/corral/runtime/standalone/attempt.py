"""One attempt from its order to its end: prepared, run, watched, told."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from corral.runtime import endings
from corral.runtime.channels import remarks
from corral.runtime.failures import AttemptFailed, Failure
from corral.runtime.files.downloads import Abandoned, Download, Ticket
from corral.runtime.files.removal import remove_tree
from corral.runtime.hints import GIB
from corral.runtime.order import Cancel, Order
from corral.runtime.process import system
from corral.runtime.process.memory_kills import MemoryKills
from corral.runtime.sandbox.asked_paths import found
from corral.runtime.standalone.door import DoorClient, Outbox, Over
from corral.runtime.standalone.environment import StandaloneEnvironment, prepared
from corral.runtime.standalone.run_directories import new_run_directory
from corral.runtime.standalone.runner import Frame, StandaloneRunner, end_of, held_of, message_of
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket, taken

KILL_GRACE_S = 5.0
"""Between terminating and killing what ran over its duration."""
DEATH_S = 1.0
"""How long the exit code of a runner is waited for that has closed its pipes."""
WEIGH_S = 0.5
OVER = 3
"""The exit code where the controller did not want to hear of the attempt any more."""


class Ending(Exception):
    """The attempt is to end now: with this failure, or without a word where nobody wants one."""

    def __init__(self, failure: Failure | None, grace_s: float = 0.0) -> None:
        super().__init__()
        self.failure, self.grace_s = failure, grace_s


def main() -> int:
    ticket = taken()
    system.close_to_others()
    system.hold_descendants()
    try:
        order = DoorClient(ticket).order()
    except Over as error:
        print(f"corral: {error}", file=sys.stderr)
        return OVER
    return StandaloneAttempt(ticket, order).run()


class StandaloneAttempt:
    def __init__(self, ticket: AttemptTicket, order: AttemptOrder) -> None:
        self._ticket, self._order = ticket, order
        self._is_code = order.document["work"]["type"] != "pipeline"
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        """What happens to it, from all threads."""
        self._outbox = Outbox(DoorClient(ticket), self._events.put)
        self._since = 0.0
        self._began = False
        self._until = float("inf")
        self._duration_s = order.duration_s
        self._kills = MemoryKills()
        self._kills_before = self._kills.seen
        self._told_at = 0.0
        """The share of its duration after which it was last told of its end."""

    def run(self) -> int:
        threading.Thread(target=self._ask, daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(("stop", None)))
        try:
            end = self._run()
        except Ending as ending:
            if ending.failure is None:
                return OVER
            end = {"failure": ending.failure}
        return 0 if self._tell_end(end) else OVER

    def _tell_end(self, end: dict[str, Any]) -> bool:
        """False: the controller wants none of it. An end, or something just before it, that is
        taken for no message is one that the job made up, and that is told instead."""
        ended = {
            "type": "ended",
            "at": time.time(),
            "seconds": time.monotonic() - self._since if self._since else 0.0,
            "digest": self._order.digest,
        }
        for how in (end, {"failure": endings.GARBLED}):
            refusals = self._outbox.refusals
            try:
                self._outbox.add({**ended, **how})
            except ValueError:  # no text, or no number
                continue
            if not self._outbox.emptied():
                return False
            if self._outbox.refusals == refusals:
                return True
        return False

    def _ask(self) -> None:
        """Hears that it is to end, or has more time, also while it has nothing to tell."""
        door, duration_s = DoorClient(self._ticket), self._duration_s
        try:
            while not (cancel := (answer := door.ask()).get("cancel")):
                longer_s = float(answer.get("duration_s", 0.0))
                if longer_s > duration_s:
                    duration_s = longer_s
                    self._events.put(("extended", longer_s))
        except Over as error:
            self._events.put(("over", str(error)))
        else:
            self._events.put(("cancel", float(cancel["grace_s"])))

    def _run(self) -> dict[str, Any]:
        if not self._is_code and self._ticket.renderer is None:
            raise Ending(endings.IMAGES_REFUSED)
        try:
            home = _home(self._ticket.folder)
            folder = new_run_directory(home)
        except OSError as error:
            raise Ending(endings.no_runner(error)) from error
        try:
            environment, inputs = self._prepared(home, folder)
            return self._run_in(folder, environment, inputs)
        finally:
            with contextlib.suppress(OSError):
                remove_tree(folder)

    # --- before it runs ---

    def _let_read(self, needs: Any) -> None:
        """What the job asked for, where that is not allowed to every job anyway."""
        owned = bool(needs.get("owned"))
        closed = os.path.dirname(self._ticket.folder) if owned else ""
        paths = found(needs.get("read", ()), closed)
        if owned:
            given = self._ticket.read_paths
            self._ticket = replace(self._ticket, read_paths=(*given, *paths))

    def _prepared(self, home: str, folder: str) -> tuple[StandaloneEnvironment, dict[str, str]]:
        """In a thread, while this one listens."""
        abandoned = threading.Event()

        def prepare() -> None:
            try:
                for part in ("work", "output", "tmp", "inputs"):
                    os.mkdir(os.path.join(folder, part), 0o700)
                document = self._order.document
                self._let_read(self._order.needs)
                environment = prepared(document, self._ticket, home, self._say, abandoned)
                inputs = self._inputs(os.path.join(folder, "inputs"), abandoned)
                self._events.put(("prepared", (environment, inputs)))
            except AttemptFailed as error:
                self._events.put(("unprepared", error.failure))
            except Exception as error:
                self._events.put(("unprepared", endings.not_prepared(error)))

        threading.Thread(target=prepare, daemon=True).start()
        try:
            while True:
                kind, said = self._next()
                if kind == "prepared":
                    environment, inputs = said
                    return environment, inputs
                if kind == "unprepared":
                    raise Ending(said)
        except Ending as ending:
            abandoned.set()
            system.kill_descendants()  # what builds
            if ending.failure == endings.CANCELLED:
                raise Ending(endings.CANCELLED_BEFORE) from None
            raise

    def _inputs(self, folder: str, abandoned: threading.Event) -> dict[str, str]:
        """Its input files, each where it came to lie, by the names that the job knows."""
        ticket = Ticket(
            self._ticket.url,
            self._ticket.certificate,
            self._order.job,
            self._order.attempt,
            self._order.token,
        )

        def tickets() -> list[Ticket]:
            return [] if abandoned.is_set() else [ticket]

        found = {}
        for wanted in self._order.document.get("inputs", ()):
            self._say(f"fetching {wanted['name']}")
            path = found[wanted["name"]] = os.path.join(folder, wanted["sha256"])
            if not os.path.exists(path):
                with contextlib.suppress(Abandoned):
                    Download(wanted["sha256"], wanted["size"], Path(path), tickets=tickets).run()
        return found

    def _say(self, message: str) -> None:
        self._outbox.add({"type": "progress", "message": message}, 1)

    # --- while it runs ---

    def _run_in(
        self, folder: str, environment: StandaloneEnvironment, inputs: dict[str, str]
    ) -> dict[str, Any]:
        try:
            runner = StandaloneRunner(self._order, self._ticket, environment, folder)
        except OSError as error:
            raise Ending(endings.no_runner(error)) from error
        reading = threading.Thread(target=self._read, args=(runner,), daemon=True)
        reading.start()
        try:
            self._claim(runner)
            self._start_clock()
            runner.order(self._runner_order(folder, inputs))
            end = self._watch(runner)
        except Ending as ending:
            if ending.grace_s > 0:
                self._let_end(runner, ending.grace_s)
            ended = runner.end()
            reading.join()
            if ending.failure is None or ended:
                raise
            raise Ending(endings.survived(ending.failure)) from None
        runner.end()
        reading.join()
        return end

    def _claim(self, runner: StandaloneRunner) -> None:
        """It begins when that is on disk: of two processes for one attempt, one gets past this."""
        devices = list(self._ticket.devices or ())
        self._outbox.add({"type": "began", "at": time.time(), "devices": devices})

        def wait() -> None:
            if self._outbox.emptied():
                self._events.put(("claimed", None))

        threading.Thread(target=wait, daemon=True).start()
        while (kind := self._next()[0]) != "claimed":
            if kind == "gone":
                raise Ending(self._death(runner))

    def _start_clock(self) -> None:
        self._since = time.monotonic()
        self._until = self._since + self._duration_s

    def _extend(self, duration_s: float) -> None:
        self._duration_s, self._told_at = duration_s, 0.0
        if self._since:
            self._until = self._since + duration_s
            self._remark(remarks.extended(duration_s, self._until - time.monotonic()))

    def _tell_of_its_end(self) -> float:
        """What it is to hear of its end by now; returns when it is to hear more."""
        if not self._since:
            return float("inf")
        now, duration_s = time.monotonic(), self._duration_s
        if at := remarks.due(duration_s, now - self._since, self._told_at):
            self._told_at = at
            left_s = self._until - now
            self._remark(remarks.of_its_end(self._order.job, duration_s, left_s, at))
        return self._since + remarks.next_s(duration_s, self._told_at)

    def _remark(self, words: str) -> None:
        """A word of Corral's own among what the job itself prints."""
        text = f"corral: {words}\n"
        told = {"type": "output", "stream": "stderr", "text": text}
        self._outbox.add(told, len(text.encode()), at_once=True)

    def _runner_order(self, folder: str, inputs: dict[str, str]) -> Order[Any]:
        order, ticket = self._order, self._ticket
        told: Order[Any] = {
            "job": order.job,
            "attempt": order.attempt,
            "document": order.document,
            "endpoint": {
                "url": ticket.url,
                "certificate": ticket.certificate,
                "artifacts": order.artifacts,
            },
            "token": order.token,
            "work_dir": folder,
            "checkpoint": order.checkpoint,
            "correlation_id": order.correlation_id,
            "inputs": inputs,
        }
        if not self._is_code and ticket.renderer is not None:
            told["renderer"] = ticket.renderer
        return told

    def _read(self, runner: StandaloneRunner) -> None:
        """Passes on what the job tells; waits where that is more than is received."""

        def heard(frame: Frame) -> None:
            kind = frame["frame"]
            if kind == "started" and not self._began:
                self._began = True
                self._events.put(("started", None))
            elif kind in ("result", "error"):
                self._events.put((kind, (end_of(frame), held_of(frame))))
            elif (told := message_of(frame)) is not None:
                self._outbox.add(*told)

        try:
            runner.frames(heard)
        finally:
            self._events.put(("gone", None))

    def _watch(self, runner: StandaloneRunner) -> dict[str, Any]:
        while True:
            kind, said = self._next(WEIGH_S if runner.limit else None)
            if kind == "started":
                self._start_clock()
            elif kind == "result":
                return {"result": said[0]}
            elif kind == "error":
                raise Ending(self._error(*said))
            elif kind == "gone":
                raise Ending(self._death(runner))
            elif kind == "nothing" and 0 < runner.limit < (held := runner.memory_bytes()):
                raise Ending(endings.over_memory(held / GIB, runner.limit / GIB))

    def _next(self, within_s: float | None = None) -> tuple[str, Any]:
        """The next event, or `nothing` after so long. Raises where the attempt is to end."""
        left = min(self._until, self._tell_of_its_end()) - time.monotonic()
        timeout = left if within_s is None else min(left, within_s)
        try:
            kind, said = self._events.get(
                timeout=None if timeout == float("inf") else max(0.0, timeout)
            )
        except queue.Empty:
            if time.monotonic() < self._until:
                return "nothing", None
            raise Ending(endings.over_duration(self._duration_s), KILL_GRACE_S) from None
        if kind == "cancel":
            raise Ending(endings.CANCELLED, said)
        if kind == "extended":
            self._extend(said)
        if kind == "stop":
            raise Ending(endings.STOPPING, KILL_GRACE_S)
        if kind in ("over", "refused"):
            print(f"corral: {said}", file=sys.stderr)
            raise Ending(None if kind == "over" else endings.GARBLED)
        return kind, said

    def _error(self, failure: Failure, held_bytes: int) -> Failure:
        """What its runner said, or better: why the kernel killed it."""
        killed = (failure["code"], failure.get("exit_code")) == ("process_died", -9)
        if killed and self._kills.since(self._kills_before, held_bytes):
            return endings.killed_for_memory(held_bytes, self._kills)
        return endings.of_error(failure, is_code=self._is_code)

    def _death(self, runner: StandaloneRunner) -> Failure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            runner.process.wait(DEATH_S)
        if runner.garbled:
            return endings.GARBLED
        code, secrets = runner.process.returncode, self._order.secrets
        return endings.of_death(code, runner.stderr, secrets, began=self._began)

    def _let_end(self, runner: StandaloneRunner, grace_s: float) -> None:
        """Asks it to end, and gives it so long; what it says then of its end no longer counts."""
        until = time.monotonic() + grace_s
        runner.say(Cancel(job=self._order.job, attempt=self._order.attempt, cancel=True))
        runner.ask_to_end()
        with contextlib.suppress(queue.Empty):
            while True:
                kind, _ = self._events.get(timeout=max(0.0, until - time.monotonic()))
                if kind in ("result", "error", "gone", "over"):
                    return


def _home(folder: str) -> str:
    """Where run directories and environments are made: nobody else's."""
    if not folder:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(cache, "corral", "standalone")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if sys.platform != "win32" and os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder
