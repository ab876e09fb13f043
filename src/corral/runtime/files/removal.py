"""Removing what a job left behind: however deep it lies, and whatever it shut."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any


def remove_tree(path: str) -> None:
    """Whatever somebody made of it. Links are removed, never followed; OSError where some of it
    resists, after all the rest is gone."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif sys.platform == "win32":
        shutil.rmtree(path, onerror=_try_again)
    else:
        top = _opened(path)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


if sys.platform == "win32":

    def _try_again(function: Callable[..., Any], path: str, _error: Any) -> None:
        """What is read-only is not removed there."""
        os.chmod(path, stat.S_IRWXU)
        function(path)

else:

    def _empty(top: int) -> None:
        """Names are looked up in open folders alone, so nobody who still writes there can lead us
        elsewhere. Folders within folders are moved up before their turn: none lies too deep."""
        new_names = (secrets.token_hex(8) for _ in itertools.count())
        resists: dict[str, OSError] = {}
        while names := [name for name in os.listdir(top) if name not in resists]:
            for name in names:
                try:
                    if not _unlinked(name, top):
                        _level(name, top, new_names)
                except FileNotFoundError:
                    continue  # gone by itself
                except OSError as error:
                    resists[name] = error
        for reason in resists.values():
            raise reason

    def _level(name: str, top: int, new_names: Iterator[str]) -> None:
        folder = _opened(name, top)
        try:
            for inner in os.listdir(folder):
                if not _unlinked(inner, folder):
                    os.close(_opened(inner, folder))  # only what may be written to can be moved
                    os.rename(inner, next(new_names), src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)

    def _unlinked(name: str, folder: int) -> bool:
        """False where it is a folder."""
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            return False
        return True

    def _opened(name: str, folder: int | None = None) -> int:
        """A folder, and no link to one; a job may have taken its own permissions away."""
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with suppress(OSError):
                os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=found)
        finally:
            os.close(found)
