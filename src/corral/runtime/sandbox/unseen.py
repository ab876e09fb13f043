"""Says what a job looks for in vain: in a folder that it may not see, `glob` and `os.walk` find
nothing, and no error tells why.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MOST_TOLD = 20
LISTINGS = ("listdir", "scandir")


class UnseenFolders:
    def __init__(self, seen: Sequence[str]) -> None:
        """What the job may read and write. A denial elsewhere is the sandbox's."""
        self._seen = tuple(os.path.join(os.path.realpath(path), "") for path in seen)
        self._told: set[str] = set()
        self._errors = (0, 0)

    def begin(self) -> None:
        """Each attempt is told anew, where its errors go now."""
        self._told.clear()
        self._errors = _inode(2)

    def watch(self) -> None:
        """From here on in this process: whoever lists a folder asks one of these. An audit hook
        would hear of more, and make all of Python slower: `id()` is an event too."""
        for name in LISTINGS:
            listing = self._telling(name, getattr(os, name))
            setattr(os, name, listing)
            os.supports_fd.add(listing)

    def _telling(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def listing(path: Any = ".") -> Any:
            try:
                return real(path)
            except PermissionError:
                self._tell(path)
                raise

        listing.__module__, listing.__name__, listing.__qualname__ = "os", name, name
        listing.__doc__ = real.__doc__
        return listing

    def _tell(self, path: Any) -> None:
        try:
            folder = os.path.realpath(os.fsdecode(path))
            inside = os.path.join(folder, "")
            if path in sys.path:
                return  # it is Python that looks, for modules, and says what it did not find
            # Whoever may see a part of it is not to be told to open all of it.
            if any(inside.startswith(one) or one.startswith(inside) for one in self._seen):
                return
            told = tuple(self._told)  # threads of the job look at once
            if len(told) >= MOST_TOLD or any(inside.startswith(f"{one}/") for one in told):
                return
            self._told.add(folder)
            if _inode(2) == self._errors:  # or it is a file of the job's by now
                os.write(2, _sentence(folder).encode("utf-8", "surrogateescape"))
        except Exception:  # it only explains: the error that follows is the job's own
            return


def _inode(fd: int) -> tuple[int, int]:
    try:
        found = os.fstat(fd)
    except OSError:
        return (0, 0)
    return (found.st_ino, stat.S_IFMT(found.st_mode))


def _sentence(folder: str) -> str:
    return (
        f"corral: this job sees nothing of {folder} on this worker. Its owner lets one job read it "
        f"with --read {folder} (read=[…]), and all jobs with read_paths in its corral.yaml: "
        f"worker: {{read_paths: [{folder}]}}\n"
    )
