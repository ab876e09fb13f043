"""The agent's log of attempts: a line for each start and end.

Attempts of one call that start or end within a moment share a line that names all of them. What
failed has a line of its own, at once (see `results`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from corral import logs
from corral.protocol.messages import JobDispatch

MOMENT_S = 0.1
PER_LINE = 1000
_STARTED = ("attempt_started", "attempts_started")
_SUCCEEDED = ("attempt_succeeded", "attempts_succeeded")

Names = tuple[str, str]


class AttemptLog:
    def __init__(self, inform: Callable[[list[dict[str, Any]]], None] = logs.inform) -> None:
        self._inform = inform
        self._groups: dict[tuple[Names, str, int], list[tuple[str, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def started(self, dispatch: JobDispatch) -> None:
        self._add(_STARTED, dispatch, -1.0)

    def succeeded(self, dispatch: JobDispatch, seconds: float) -> None:
        self._add(_SUCCEEDED, dispatch, seconds)

    def _add(self, names: Names, dispatch: JobDispatch, seconds: float) -> None:
        key = (names, dispatch.correlation_id, dispatch.attempt)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = [(dispatch.job, seconds)]
        else:
            group.append((dispatch.job, seconds))
            if len(group) == PER_LINE:
                self.flush()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self.flush)

    def flush(self) -> None:
        """Says what is left; before the agent ends, too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        groups, self._groups = self._groups, {}
        lines = []
        for ((one, many), correlation_id, attempt), group in groups.items():
            told: dict[str, Any] = {"event": one if len(group) == 1 else many}
            if len(group) == 1:
                job, seconds = group[0]
                told["job"] = job
                if seconds >= 0:
                    told["seconds"] = round(seconds, 6)
            else:
                told["count"] = len(group)
            told |= {"attempt": attempt, "correlation_id": correlation_id}
            if len(group) > 1:
                told["jobs"] = [job for job, _ in group]
            lines.append(told)
        if lines:
            self._inform(lines)
