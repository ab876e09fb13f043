"""The queue's pause: nothing new is started while it lasts, also after a restart.

It is a wish of the operator about the whole queue and no fact about a job, so it lies in a file of
its own beside the journal, replaced at once.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from corral.core.errors import HomeUnusable, StorageFailed
from corral.home import read_json, write_private_json


class Pause:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        self.active, self.at, self.by = False, 0.0, ""
        if path.exists():
            kept = read_json(path)
            if not isinstance(kept.get("paused"), bool):
                # A wrong guess would start what somebody held back.
                raise HomeUnusable(
                    f"{path} says nothing clear about whether the queue is paused. Delete it to "
                    'start with a running queue, or write {"paused": true} into it.'
                )
            self.active = kept["paused"]
            self.at, self.by = float(kept.get("at") or 0.0), str(kept.get("by") or "")

    async def change(self, active: bool, *, by: str) -> None:
        """Durable when this returns; asking for what is already so changes nothing."""
        async with self._changing:
            if active == self.active:
                return
            at = time.time()
            view = {"paused": active, "at": at, "by": by}
            try:
                await asyncio.to_thread(write_private_json, self._path, view)
            except OSError as error:
                raise StorageFailed(
                    f"{self._path} could not be written ({error.strerror}). Free some space, then "
                    "try again."
                ) from error
            self.active, self.at, self.by = active, at, by

    def told(self) -> str:
        """Since when and by whom, for a sentence."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at)) if self.at else ""
        return f"{f' since {since}' if since else ''}{f' by {self.by}' if self.by else ''}"
