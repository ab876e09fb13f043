"""What an attempt needs before it may wait for room: its environment, and its input files."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.phases import Phase
from corral.agent.environments.builder import BuildFailed, Environments
from corral.agent.files.assets import AssetCache
from corral.agent.files.downloads import Abandoned, AssetFailed, Ticket
from corral.core.job import Failure, Input

log = structlog.get_logger("corral.agent.attempts.preparation")


class Preparation:
    def __init__(
        self,
        environments: Environments,
        assets: AssetCache,
        *,
        ticket: Callable[[HeldAttempt], Ticket],
        say: Callable[[HeldAttempt, str], None],
        ready: Callable[[HeldAttempt], None],
        failed: Callable[[HeldAttempt, Failure], None],
    ) -> None:
        self._environments, self._assets = environments, assets
        self._ticket, self._say = ticket, say
        self._ready, self._failed = ready, failed

    def is_needed(self, attempt: HeldAttempt) -> bool:
        return bool(attempt.recipe.inputs) or self._environments.ready(attempt.spec) is None

    async def prepare(self, attempt: HeldAttempt) -> None:
        """It holds nothing of this worker while it waits for this."""
        try:
            if self._environments.ready(attempt.spec) is None:
                await self._build(attempt)
            for wanted in attempt.recipe.inputs:
                await self._fetch(attempt, wanted)
        except (BuildFailed, AssetFailed) as error:
            self._fail(attempt, error.failure)
        except Abandoned:
            return
        except Exception as error:
            # A mistake of ours, or a disk that fails: it must not stay here for ever.
            log.exception("attempt_not_prepared", job=attempt.key[0], attempt=attempt.key[1])
            said = f"The worker could not prepare it: {type(error).__name__}: {error}"
            self._fail(attempt, Failure("transfer_failed", said))
        else:
            if _is_wanted(attempt):
                self._ready(attempt)

    def _fail(self, attempt: HeldAttempt, failure: Failure) -> None:
        if _is_wanted(attempt):
            self._failed(attempt, failure)

    async def _build(self, attempt: HeldAttempt) -> None:
        count = len(attempt.spec.requirements)
        what = (
            f"{count} requirement{'s' * (count != 1)}" if count else f"Python {attempt.spec.python}"
        )
        self._say(attempt, f"building environment ({what})")
        await self._environments.get(attempt.spec)

    async def _fetch(self, attempt: HeldAttempt, wanted: Input) -> None:
        def say(have: int, size: int) -> None:
            if _is_wanted(attempt):
                percent = f"{have / size:.0%}" if size else ""
                self._say(attempt, f"fetching {wanted.name} {percent}")

        attempt.inputs[wanted.name] = await self._assets.get(
            wanted, self._ticket(attempt), lambda: _is_wanted(attempt), say
        )


def _is_wanted(attempt: HeldAttempt) -> bool:
    """Not cancelled or returned meanwhile."""
    return attempt.phase is Phase.PREPARING
