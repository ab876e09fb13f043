"""What plain queues do with the same trace: first come first served, and round robin.

Both know which worker could ever run a job, and nothing else: no classes, no models, no speeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from corral.simulate.cluster import SimulatedAttempt
from corral.simulate.trace import TracedJob


class Plain:
    """Takes back what fails or is lost, and has no clock of its own."""

    classes = False

    def __init__(self) -> None:
        self._queue: deque[TracedJob] = deque()
        self._failures: dict[int, int] = {}

    def arrived(self, work: TracedJob, now: float) -> None:
        self._queue.append(work)

    def began(self, work: TracedJob, worker: str, now: float) -> None:
        pass

    def ended(
        self, work: TracedJob, worker: str, now: float, seconds: float, *, fails: bool
    ) -> bool:
        count = self._failures[work.number] = self._failures.get(work.number, 0) + fails
        again = fails and count <= work.retries
        if again:
            self._queue.append(work)
        return again

    def lost(self, worker: str, held: Sequence[TracedJob], now: float) -> int:
        self._queue.extendleft(reversed(held))
        return 0

    def next_look(self, now: float) -> float | None:
        return None


class Fifo(Plain):
    """The next job in the order of arrival goes to a worker that is idle and able."""

    def orders(
        self, now: float, machines: Sequence[SimulatedAttempt]
    ) -> Sequence[tuple[TracedJob, str]]:
        idle = [one for one in machines if one.up and one.current is None and not one.waiting]
        sent: list[tuple[TracedJob, str]] = []
        passed: list[TracedJob] = []
        while idle and self._queue:
            work = self._queue.popleft()
            machine = next((one for one in idle if could(one, work)), None)
            if machine is None:
                passed.append(work)
                continue
            idle.remove(machine)
            sent.append((work, machine.name))
        self._queue.extendleft(reversed(passed))
        return sent


class RoundRobin(Plain):
    """Each job goes to the next able worker in turn, as it arrives, and waits there."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def orders(
        self, now: float, machines: Sequence[SimulatedAttempt]
    ) -> Sequence[tuple[TracedJob, str]]:
        sent: list[tuple[TracedJob, str]] = []
        stuck: list[TracedJob] = []
        while self._queue:
            work = self._queue.popleft()
            for step in range(len(machines)):
                machine = machines[(self._turn + step) % len(machines)]
                if machine.up and could(machine, work):
                    self._turn = (self._turn + step + 1) % len(machines)
                    sent.append((work, machine.name))
                    break
            else:
                stuck.append(work)
        self._queue.extend(stuck)
        return sent


def could(machine: SimulatedAttempt, work: TracedJob) -> bool:
    present = not work.model or work.model in machine.present
    return present and machine.vram_gb >= work.vram_gb
