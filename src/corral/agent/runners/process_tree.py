"""Ending a runner and everything it ever started: terminate, grace, kill.

Its supervisor ends what is below it: it is a subreaper, so while it lives, whatever its job started
hangs there, daemons too. It is therefore killed last. Where a runner has a control group, that is
then killed as one. Else what got away is found by its session and by the markers in its
environment. Neither is enough alone: a job can start a process in another group (`clone3`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from corral.agent.runners.cgroups import Cgroup

HOME_MARKER = "CORRAL_WORKER_HOME"
RUNNER_MARKER = "CORRAL_RUNNER"

KILL_ROUNDS = 200
ROUND_S = 0.02
SUPERVISOR_S, SUPERVISOR_ROUND_S = 6.0, 0.002
"""How long a supervisor is waited for that ends what is below it; it gives up sooner itself."""
_GONE = (psutil.Error, OSError)


def _alive(process: psutil.Process) -> bool:
    with suppress(*_GONE):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _tell(processes: Iterable[psutil.Process], order: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(*_GONE):
            order(process)


def _end_below(supervisors: Iterable[psutil.Process]) -> None:
    """They end everything below them, and themselves."""
    if sys.platform != "win32":
        _tell(supervisors, lambda process: process.send_signal(signal.SIGHUP))


def marked(home: str, runner: str = "") -> list[psutil.Process]:
    """Living processes that carry the markers of this worker (and of this runner)."""
    found = []
    own = os.getpid()
    for process in psutil.process_iter():
        if process.pid == own:
            continue
        with suppress(*_GONE):
            if _carries(process, home, runner) and _alive(process):
                found.append(process)
    return found


def _carries(process: psutil.Process, home: str, runner: str) -> bool:
    try:
        environ = process.environ()
    except (psutil.AccessDenied, PermissionError):
        # A supervisor is closed to others; its command line names the kit in this home. Which
        # runner it is does not show, but as the root of a tree it is known by its process id.
        return not runner and _runs_kit(process, home)
    return environ.get(HOME_MARKER) == home and runner in ("", environ.get(RUNNER_MARKER))


def _runs_kit(process: psutil.Process, home: str) -> bool:
    kit = os.path.join(home, "kit", "")
    with suppress(*_GONE):
        return any(word.startswith(kit) for word in process.cmdline()[1:4])
    return False


def sweep(home: str) -> int:
    """Kill what a previous agent of this home left behind; how many processes that was. What hangs
    below a process with our markers is ours too, whatever it made of its environment."""
    swept: set[int] = set()
    found = marked(home)
    if supervisors := [process for process in found if _runs_kit(process, home)]:
        swept.update(process.pid for process in _with_descendants(found))
        _end_below(supervisors)
        psutil.wait_procs(supervisors, timeout=SUPERVISOR_S)
    for _ in range(KILL_ROUNDS):
        left = _with_descendants(marked(home))
        if not left:
            break
        swept.update(process.pid for process in left)
        _tell(left, psutil.Process.kill)
        psutil.wait_procs(left, timeout=ROUND_S)
    return len(swept)


def _with_descendants(roots: list[psutil.Process]) -> list[psutil.Process]:
    found = {root.pid: root for root in roots}
    for root in roots:
        with suppress(*_GONE):
            found.update((one.pid, one) for one in root.children(recursive=True))
    return [one for one in found.values() if _alive(one)]


class Tree:
    """The processes of one runner. The system uses process ids again, so the runner is held as a
    `psutil.Process`, and after its death only what is older than that is its."""

    def __init__(
        self,
        pid: int,
        *,
        home: str,
        runner: str,
        signals: bool = True,
        group: Cgroup | None = None,
    ) -> None:
        self.pid = pid
        self.group = group
        self.exited_at = 0.0
        self._home, self._runner = home, runner
        self._signals = signals
        """Whether its processes can be asked to end by a signal."""
        try:
            self._root: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._root = None

    def lives(self) -> bool:
        """Whether the first of them does."""
        return self._root is not None and _alive(self._root)

    def members(self) -> list[psutil.Process]:
        """Everything alive, deepest first and the runner itself last."""
        root = self._root
        if root is None or not _alive(root):
            return []
        below: list[psutil.Process] = []
        with suppress(*_GONE):
            below = root.children(recursive=True)
        return [*(process for process in reversed(below) if _alive(process)), root]

    def memory_bytes(self, limit: int) -> int:
        """Pages shared by forks count once: looked up only when the cheap sum is over `limit`."""
        tree = self.members()
        resident = proportional = 0
        for process in tree:
            with suppress(*_GONE):
                resident += process.memory_info().rss
        if resident <= limit:
            return resident
        for process in tree:
            with suppress(*_GONE):
                full = process.memory_full_info()
                proportional += getattr(full, "pss", full.rss)
        return proportional

    def pin(self, processors: tuple[int, ...]) -> None:
        """Move the whole tree to these processors, with the threads that are there already."""
        if sys.platform == "linux":
            for process in self.members():
                with suppress(*_GONE):
                    for thread in process.threads():
                        os.sched_setaffinity(thread.id, processors)

    def _left(self) -> list[psutil.Process]:
        tree = self.members()
        if tree:
            return tree
        died_at = self.exited_at or time.time()
        left = {process.pid: process for process in marked(self._home, self._runner)}
        if sys.platform != "win32":  # which has no sessions
            for process in psutil.process_iter():
                with suppress(*_GONE):
                    if (
                        process.pid not in left
                        and os.getsid(process.pid) == self.pid
                        and process.create_time() < died_at
                        and _alive(process)
                    ):
                        left[process.pid] = process
        return list(left.values())

    def _kill_round(self, known: list[psutil.Process]) -> bool:
        """Kill what is left; True when nothing was. The runner goes only when all below it is
        gone, so that nothing is orphaned out of sight."""
        found = self._left()
        seen = {process.pid for process in found}
        found += [process for process in known if process.pid not in seen and _alive(process)]
        below = [process for process in found if process.pid != self.pid]
        _tell(below or found, psutil.Process.kill)
        return not found

    async def end(self, grace_s: float, settled: Callable[[], bool]) -> bool:
        """True when nothing is left alive. `settled`: the job has ended, which ends the grace."""
        loop = asyncio.get_running_loop()
        tree: list[psutil.Process] = []
        if grace_s > 0:
            tree = await asyncio.to_thread(self._left)
            if self._signals:
                _tell(tree, psutil.Process.terminate)
            until = loop.time() + grace_s
            while loop.time() < until and not settled():
                if not any(_alive(process) for process in tree):
                    break
                await asyncio.sleep(min(ROUND_S, grace_s))
        await self._supervisor_ends()
        if self.group is not None:
            return await self.group.end()
        for _ in range(KILL_ROUNDS):
            if await asyncio.to_thread(self._kill_round, tree):
                return True
            await asyncio.sleep(ROUND_S / 4)
        return False

    async def _supervisor_ends(self) -> None:
        root = self._root
        if root is None or not self._signals:
            return
        _end_below([root])
        for _ in range(int(SUPERVISOR_S / SUPERVISOR_ROUND_S)):
            if not _alive(root):
                return
            await asyncio.sleep(SUPERVISOR_ROUND_S)
