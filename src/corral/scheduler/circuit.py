"""A worker's circuit: it opens after repeated failures of its own, and one job at a time closes it.

Open, a worker gets nothing. After a cool-down it is half open: it gets one job, the probe. A probe
that works closes the circuit; one that the worker fails opens it again, for longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.core.failures import FailureClass, classify
from corral.core.images.backends import SERVERS
from corral.core.job import Failure


class Breaker(Struct, frozen=True):
    failures: int = 3
    window_s: float = 60.0
    cool_s: float = 10.0
    cool_max_s: float = 600.0


class Circuit(Struct, frozen=True):
    """What is held against a worker since it last did something well."""

    failed: Mapping[str, float] = {}
    """When it failed, by what it failed: a job that dies wherever it runs counts once."""
    opened: int = 0
    """How often in a row."""
    until: float = 0.0
    """When it may be tried again."""

    def is_open(self, now: float) -> bool:
        return now < self.until

    def is_half_open(self, now: float) -> bool:
        return 0 < self.until <= now

    def closed_to(self, now: float, holds: int) -> bool:
        """Whether a worker that holds so many attempts gets nothing: a probe goes alone."""
        return self.until > 0 and (now < self.until or holds > 0)

    def told(self, now: float, holds: int) -> str:
        """Why it gets nothing now; empty where it gets work."""
        if not self.closed_to(now, holds):
            return ""
        count = len(self.failed)
        since = now - min(self.failed.values(), default=now)
        what = f"{count} failure{'s' * (count != 1)} in {since:.0f} s"
        if self.is_open(now):
            return f"its circuit is open: {what}, next probe in {self.until - now:.0f} s"
        return f"its circuit is half open: {what}, a probe is under way"


CLOSED = Circuit()

NOT_ITS_OWN = frozenset({"worker_stopping"})
"""Ends with its worker that are no failure of it: somebody told it to leave."""
RETURNED = "returned"
"""No end of an attempt, but held against a worker that hands back unasked what it is given."""
PROOFS = frozenset({"exception", "exit_code", "no_result"})
"""Failures that show that the worker works: the job's own code ran, and failed by itself."""


def _of_another(failure: Failure) -> bool:
    """An image server that dies takes no other work along."""
    died = failure.code == "backend_down" and failure.type in SERVERS
    return died or failure.code in NOT_ITS_OWN


def after(
    circuit: Circuit, failure: Failure | None, what: str, *, at: float, breaker: Breaker
) -> Circuit:
    """The circuit after an attempt ended on its worker; `what` names the job, or the loss."""
    if failure is None or failure.code in PROOFS:
        return circuit if circuit.is_open(at) else CLOSED
    its_own = classify(failure.code) is FailureClass.WORKER and not _of_another(failure)
    if failure.code != RETURNED and not its_own:
        return circuit
    recent = {one: when for one, when in circuit.failed.items() if at - when < breaker.window_s}
    failed = {**recent, what: at}
    if circuit.is_open(at):
        return Circuit(failed, circuit.opened, circuit.until)
    if circuit.is_half_open(at) or len(failed) >= breaker.failures:
        cool_s = min(breaker.cool_max_s, breaker.cool_s * 2 ** min(circuit.opened, 30))
        return Circuit(failed, circuit.opened + 1, at + cool_s)
    return Circuit(failed)
