"""Does what the schedule says to a cluster of namespaces, and undoes it when its time is over."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil

import corral
from corral.core.errors import CorralError, WorkerNotFound
from tests.chaos.power_disk import PowerDisk
from tests.chaos.rogue import Rogue
from tests.chaos.schedule import CONTROLLER, HOUR_S, Fault
from tests.chaos.work import Clients
from tests.network.machines import Cluster, Worker
from tests.network.meddler import Mischief
from tests.network.wires import BOTH

ASK_AGAIN_S = 0.3
CLAIMED = 50
"""So many of the youngest jobs a worker that lies calls its own."""
Action = Callable[[], None]
Question = Callable[[corral.Client], object]


class Inflictor:
    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self._cluster, self._clients = cluster, clients
        self._rogue = Rogue(cluster)
        self.injected: Counter[str] = Counter()
        self._due: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._down: dict[str, int] = {}
        """Machines that nobody starts again now, and by how many faults."""
        self._questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
        # Somebody else asks: the controller may be stalled, and this one must let it go on.
        threading.Thread(target=self._asking, daemon=True).start()

    def plan(self, faults: list[Fault], begun: float) -> None:
        for fault in faults:
            self._at(begun + fault.at_s, lambda fault=fault: self._inflict(fault))  # type: ignore[misc]

    @property
    def busy(self) -> bool:
        return bool(self._due) or not self._questions.empty()

    def turn(self) -> None:
        """Does what is due, and starts again what has ended, as a service would."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        process = self._cluster.controller.process
        if not self._down.get(CONTROLLER) and process is not None and process.poll() is not None:
            self._cluster.controller.start()
        for worker in self._cluster.workers.values():
            if not self._down.get(worker.name):
                worker.start_if_ended()

    def _at(self, when: float, action: Action) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def _later(self, seconds: float, action: Action) -> None:
        self._at(time.monotonic() + seconds, action)

    # --- each kind ---

    def _inflict(self, fault: Fault) -> None:
        self.injected[fault.kind] += 1
        if fault.kind.startswith("controller"):
            return self._controller(fault)
        if fault.kind == "clock jumped":
            clocks = {name: worker.clock for name, worker in self._cluster.workers.items()}
            clock = {**clocks, CONTROLLER: self._cluster.clock}[fault.target]
            return clock.set((-HOUR_S, 0, HOUR_S)[int(fault.detail * 3)])
        if fault.kind == "connections reset":
            return self._cluster.network.reset(fault.target)
        if fault.kind == "a worker lied":
            living = [job for job in list(self._clients.accepted) if job not in self._clients.ended]
            living = living[-CLAIMED:]
            return threading.Thread(
                target=self._rogue.lie, args=(living, fault.detail), daemon=True
            ).start()
        worker = self._cluster.workers[fault.target]
        if fault.kind.startswith("wire"):
            self._wire(worker, fault)
        elif fault.kind.startswith("messages"):
            self._messages(fault)
        elif fault.kind == "agent stalled":
            worker.signal(signal.SIGSTOP)
            self._later(fault.lasting_s, lambda: worker.signal(signal.SIGCONT))
        elif fault.kind == "agent killed":
            worker.kill()
            self._keep_down(worker.name, fault.lasting_s)
        elif fault.kind == "worker lost power":
            self._cut_power(worker.name)
            worker.ended()
            self._keep_down(worker.name, fault.lasting_s)
        elif fault.kind == "job process killed":
            self._job_process(worker, fault.detail)
        elif fault.kind == "drained and resumed":
            self._wish(worker, draining=True)
            self._later(fault.lasting_s, lambda: self._wish(worker, draining=False))
        else:
            self._revoke(worker)

    def _wire(self, worker: Worker, fault: Fault) -> None:
        network = self._cluster.network
        if "both" in fault.kind:
            network.cut(worker.name, *BOTH)
        else:
            network.cut(worker.name, "up" if "up" in fault.kind else "down")
        self._later(fault.lasting_s, lambda: network.heal(worker.name))

    def _messages(self, fault: Fault) -> None:
        meddler = self._cluster.meddler
        assert meddler is not None
        seed = int(fault.detail * 2**32)
        if fault.kind == "messages repeated":
            meddler.mischief = Mischief(repeat=0.4, delay_s=0.3, seed=seed)
        else:
            meddler.mischief = Mischief(swap=0.3, delay=0.3, delay_s=0.1, seed=seed)
        self._later(fault.lasting_s, lambda: setattr(meddler, "mischief", Mischief()))

    def _controller(self, fault: Fault) -> None:
        controller = self._cluster.controller
        assert controller.process is not None
        if fault.kind == "controller stalled":
            controller.process.send_signal(signal.SIGSTOP)
            self._later(fault.lasting_s, lambda: _go_on(controller.process))
        elif fault.kind == "controller lost power":
            self._cut_power(CONTROLLER)
            controller.process.wait()
            self._keep_down(CONTROLLER, fault.lasting_s)
        else:
            controller.kill()
            self._keep_down(CONTROLLER, fault.lasting_s)

    def _cut_power(self, name: str) -> None:
        """Of a whole machine: what ran there is gone, and of its disk all that was not synced."""
        self._cluster.network.kill(name)
        disk = self._cluster.disks[name]
        assert isinstance(disk, PowerDisk)
        disk.cut()

    def _keep_down(self, name: str, seconds: float) -> None:
        self._down[name] = self._down.get(name, 0) + 1

        def up() -> None:
            self._down[name] -= 1

        self._later(seconds, up)

    def _job_process(self, worker: Worker, which: float) -> None:
        running = sorted(worker.job_processes(), key=lambda process: process.pid)
        if running:
            with contextlib.suppress(psutil.Error):
                running[int(which * len(running))].kill()

    # --- what is asked of the controller, in order, and again until it answers ---

    def _wish(self, worker: Worker, *, draining: bool) -> None:
        self._ask(lambda client: client.admin.change_worker(worker.known_as, draining=draining))

    def _revoke(self, worker: Worker) -> None:
        """It hears of it, ends, and is started again: with a new credential."""
        self._ask(lambda client: client.admin.revoke_worker(worker.known_as))

    def _ask(self, question: Question) -> None:
        self._questions.put(question)

    def _asking(self) -> None:
        while True:
            self._until_answered(self._questions.get())

    def _until_answered(self, question: Question) -> None:
        while True:
            try:
                with self._cluster.client() as client:
                    question(client)
                return
            except WorkerNotFound:
                return  # it has not joined again since it was revoked
            except (CorralError, OSError, ValueError):
                time.sleep(ASK_AGAIN_S)


def _go_on(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGCONT)
