"""A stage's way back, for whoever renders one without a job."""

from __future__ import annotations

import time
from collections.abc import Callable


class Tell:
    def __init__(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.told: list[tuple[float, str]] = []
        self.at: list[float] = []
        self._cancelled = cancelled

    def progress(self, fraction: float, message: str = "") -> None:
        self.told.append((fraction, message))
        self.at.append(time.monotonic())

    def cancelled(self) -> bool:
        return self._cancelled()

    @property
    def steps(self) -> list[str]:
        return [message for _, message in self.told if message.startswith("step ")]
