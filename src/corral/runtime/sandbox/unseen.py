"""Says what a job looks for in vain: in a folder that it may not see, `glob` and `os.walk` find
nothing, and no error tells why.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LOOKS = frozenset({"open", "os.listdir", "os.scandir"})
"""Python's own names for what is asked of it (`sys.addaudithook`)."""
FOR_TRACEBACKS = frozenset({"linecache", "tokenize"})
"""They show the lines of a function's source, which lies where it was written, if it is there."""
MOST_TOLD, MOST_KNOWN = 20, 10_000


class UnseenPaths:
    def __init__(self, seen: Sequence[str]) -> None:
        """What the job may read and write; all else that exists is told of."""
        self._seen = tuple(os.path.join(os.path.realpath(path), "") for path in seen)
        self._plain = tuple({os.path.join(path, "") for path in seen} | {*self._seen})
        self._known: set[str] = set()
        self._told: set[str] = set()

    def begin(self) -> None:
        """Each attempt is told anew."""
        if self._told:
            self._told.clear()
            self._known.clear()

    def watch(self) -> None:
        """From here on in this process; there is no way back."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in LOOKS:
            return
        path = args[0]
        if type(path) is bytes:
            path = os.fsdecode(path)
        if type(path) is not str or path[:1] != "/" or path.startswith(self._plain):
            return
        # Python itself looks for modules there, and says what it did not find.
        if path not in sys.path and path not in self._known and len(self._known) < MOST_KNOWN:
            if sys._getframe(1).f_globals.get("__name__") in FOR_TRACEBACKS:
                return
            self._known.add(path)
            try:
                self._look(path)
            except (OSError, ValueError):
                return

    def _look(self, path: str) -> None:
        real = os.path.realpath(path)
        if f"{real}/".startswith(self._seen) or not os.path.exists(real):
            return
        folder = real if os.path.isdir(real) else os.path.dirname(real)
        if len(self._told) < MOST_TOLD and not any(
            f"{folder}/".startswith(f"{told}/") for told in self._told
        ):
            self._told.add(folder)
            os.write(2, _sentence(folder).encode("utf-8", "surrogateescape"))


def _sentence(folder: str) -> str:
    return (
        f"corral: jobs see nothing of {folder} on this worker. To let them read it, add it to "
        f"read_paths in its corral.yaml: worker: {{read_paths: [{folder}]}}\n"
    )
