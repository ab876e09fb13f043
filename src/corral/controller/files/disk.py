"""The disk of the home: when it counts as full no new work is taken, and there is room kept aside
so that what runs can still end.

A full disk does not break the journal, it only stops it. But a controller that takes work until
the last byte has no room left to write down how that work ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from corral.core.errors import DiskFull

log = structlog.get_logger()

LOOK_S = 2.0
LOOK_WHEN_FULL_S = 0.5
STEP_BACK = 0.02
"""How far below the limit it must fall before work is taken again, or each job would toggle it."""
RESERVE_SHARE = 0.01
"""The reserve is never more of the disk than this."""
GB, MB = 1e9, 1e6
SPARE = 64 * MB
"""More than the next few commits could take, and what others write in that moment."""


class DiskGuard:
    def __init__(
        self,
        home: Path,
        *,
        refuse_at: float,
        min_free_gb: float,
        reserve_mb: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._home = home
        self._refuse_at, self._min_free = refuse_at, min_free_gb * GB
        self._reserve, self._reserve_bytes = home / "reserve", int(reserve_mb * MB)
        self._changed = changed
        self.full = False
        self.reason = ""
        """Why no work is taken, empty where it is."""

    def check(self) -> None:
        if self.full:
            raise DiskFull(
                f"{self.reason} No new work is accepted, running work goes on. Free some space, "
                "or lower retention.* in corral.yaml; then submit again."
            )

    def has_spare(self) -> bool:
        """Whether what is written in the next moment will surely find room."""
        try:
            return shutil.disk_usage(self._home).free > SPARE
        except OSError:
            return False

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_WHEN_FULL_S if self.full else LOOK_S)

    def look(self) -> None:
        try:
            _, taken, free = shutil.disk_usage(self._home)
        except OSError as error:
            log.warning("disk_not_readable", error=error.strerror)
            return
        usable = taken + free  # without what the system keeps for its administrator
        used = taken / usable if usable else 1.0
        limit, least = self._refuse_at, self._min_free
        if self.full:
            limit, least = limit - STEP_BACK, least * 1.2
        full = used >= limit or free < least
        size = min(self._reserve_bytes, int(usable * RESERVE_SHARE))
        if full:
            if free < size:
                self._release()
            self.reason = (
                f"The disk of {self._home} is {used:.1%} full ({free / GB:.2f} GB free; the limit "
                f"is {self._refuse_at:.0%}"
                + (f", or {self._min_free / GB:g} GB free)." if least else ").")
            )
        else:
            self.reason = ""
            self._set_aside(size, free)
        if full != self.full:
            self.full = full
            log.warning("disk_full" if full else "disk_has_room", used=f"{used:.1%}", free=free)
            self._changed()

    def _set_aside(self, size: int, free: int) -> None:
        """Room that nobody else can take, while there is plenty."""
        try:
            if size and not self._reserve.exists() and free > 4 * size:
                with self._reserve.open("wb") as file:
                    if sys.platform == "win32":
                        file.truncate(size)
                    else:
                        os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            self._release()
            log.warning("reserve_not_made", error=error.strerror)

    def _release(self) -> None:
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("reserve_not_released", error=error.strerror)
        else:
            log.warning("reserve_released")
