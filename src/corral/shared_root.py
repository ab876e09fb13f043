"""The shared root: one folder that controller and workers have mounted, each at its own place."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from io import BufferedReader

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

    def open(self, path: str) -> BufferedReader:
        """The file itself, open: whoever can write into the root may put a link to anywhere in the
        place of a folder between two looks, so nothing is looked up by its path again."""
        found = self.locate(path)
        try:
            return _opened_below(os.path.realpath(self.root, strict=True), found)
        except OSError as error:
            raise NotInRoot(f"{path} cannot be read in the shared root: {error}.") from error

    def digest(self, path: str) -> tuple[str, int]:
        """The sha256 and size of a file inside, as it is now; reads it where it changed."""
        with self.open(path) as file:
            try:
                return self._digests.of_file(path, file)
            except OSError as error:
                raise NotInRoot(f"{path} cannot be read in the shared root: {error}.") from error


def _opened_below(above: str, found: str) -> BufferedReader:
    """Step by step, and through no link: `found` has none left."""
    if sys.platform == "win32":  # only workers run there, and prove what they read by its digest
        return open(found, "rb")
    *folders, name = os.path.relpath(found, above).split(os.sep)
    at = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is no file")
        return os.fdopen(fd, "rb")
    except OSError:
        with suppress(OSError):
            os.close(fd)
        raise
