"""The shared root: one folder that controller and workers have mounted, each at its own place."""

from __future__ import annotations

import os
import stat

from corral.digests import Digests


class NotInRoot(Exception):
    """There is no such file inside the root, or it leads out of it."""


class SharedRoot:
    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(os.path.expanduser(root)) if root else ""
        self._digests = Digests()

    def __bool__(self) -> bool:
        return bool(self.root)

    def locate(self, path: str) -> str:
        """The file itself, links resolved; NotInRoot where they lead out."""
        try:
            above = os.path.realpath(self.root, strict=True)
            found = os.path.realpath(os.path.join(above, *path.split("/")), strict=True)
            status = os.stat(found)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise NotInRoot(f"{path} cannot be read in the shared root: {said}.") from error
        if os.path.commonpath([above, found]) != above or found == above:
            raise NotInRoot(f"{path} leads out of the shared root by a link.")
        if not stat.S_ISREG(status.st_mode):
            raise NotInRoot(f"{path} in the shared root is no file.")
        return found

    def digest(self, path: str) -> tuple[str, int]:
        """The sha256 and size of a file inside, as it is now; reads it where it changed."""
        found = self.locate(path)
        try:
            return self._digests.of(found)
        except OSError as error:
            raise NotInRoot(f"{path} cannot be read in the shared root: {error}.") from error
