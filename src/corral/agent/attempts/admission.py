"""What becomes of an attempt that the controller sends: checked and taken, refused, returned, or
known already.
"""

from __future__ import annotations

import itertools

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt, Lane, decode_recipe
from corral.agent.attempts.roll import Roll
from corral.agent.environments.builder import OWN, Environments
from corral.core.job import Failure, JobId, document_digest
from corral.core.text.malformed import MALFORMED
from corral.core.worker import Capacity
from corral.protocol.messages import JobDispatch

REMEMBERED = 10_000
"""Attempts that are remembered after their end: so many, and as many again."""


class Admission:
    def __init__(self, roll: Roll, environments: Environments) -> None:
        self._roll = roll
        self._environments = environments
        self._arrivals = itertools.count()
        self._fitting: set[Lane] = set()
        """Lanes that are known to fit where nothing else runs."""
        self._seen: set[tuple[JobId, int]] = set()
        self._seen_earlier: set[tuple[JobId, int]] = set()

    def is_known(self, key: tuple[JobId, int]) -> bool:
        """Whether it is here, or was sent here lately: told again after its end, it is over."""
        if key in self._roll.known or key in self._seen or key in self._seen_earlier:
            return True
        if len(self._seen) >= REMEMBERED:
            self._seen, self._seen_earlier = set(), self._seen
        self._seen.add(key)
        return False

    def check(self, message: JobDispatch) -> HeldAttempt | Failure | str:
        """The attempt; why it can never run from this document; or why it goes back."""
        if self._roll.draining:
            return self._roll.draining
        document = bytes(message.document)
        if document_digest(document) != message.digest:
            return endings.OTHER_DOCUMENT
        try:
            recipe = decode_recipe(document)
        except MALFORMED as error:
            return endings.unreadable_document(error)
        workload = recipe.workload
        if workload not in self._roll.capabilities.workloads:
            return endings.refused(workload)
        spec = OWN
        if workload.brings_code:
            spec = self._environments.spec(recipe.python, recipe.requirements)
        attempt = HeldAttempt(message, recipe, spec, next(self._arrivals))
        if attempt.lane not in self._fitting:
            if too_much := self.too_much(attempt):
                return too_much
            self._fitting.add(attempt.lane)
        return attempt

    def too_much(self, attempt: HeldAttempt) -> str:
        """Why it would not fit even if nothing else ran here; empty where it would."""
        needs, above = attempt.lane
        empty = Capacity(self._roll.capabilities)
        if empty.fits(needs, above_vram_gb=above) is None:
            return "it needs more than this worker has"
        empty.others = self._roll.capacity.others
        if empty.fits(needs, above_vram_gb=above) is None:
            return "processes that are not Corral's use the VRAM that it needs"
        return ""

    def others_changed(self) -> None:
        """Others hold more or less of the GPUs: what fitted is asked again."""
        self._fitting.clear()
