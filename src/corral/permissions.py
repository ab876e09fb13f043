"""Reopens what jobs shut: Landlock keeps them from their user's files, not from changing modes."""

from __future__ import annotations

import os
import stat
import sys

PASS, READ_FILE, USE_FILE, USE_FOLDER = 0o100, 0o400, 0o600, 0o700


def restore(path: str, files: int = USE_FILE) -> bool:
    """Give a file or folder of ours back to us, and the way to it; whether any of it was shut."""
    way, place = [], os.path.abspath(path)
    while place != os.path.dirname(place):
        place = os.path.dirname(place)
        way.append(place)
    # From above: nothing below a folder that is shut can be seen.
    opened = [_give(place, PASS) for place in reversed(way)]
    return _give(path, files) or any(opened)


def restore_tree(top: str, depth: int, files: int) -> list[str]:
    """Likewise with what is below it, so many folders deep; what was shut."""
    opened = [top] if restore(top) else []
    if depth > 0:
        try:
            with os.scandir(top) as entries:
                inner = [entry for entry in entries if not entry.is_symlink()]
        except OSError:
            return opened
        for entry in inner:
            if _give(entry.path, files):
                opened.append(entry.path)
            if depth > 1 and entry.is_dir(follow_symlinks=False):
                opened += restore_tree(entry.path, depth - 1, files)
    return opened


def _give(path: str, needed: int) -> bool:
    """Whether it was shut and is open now."""
    if sys.platform == "win32":
        return False
    try:
        found = os.stat(path)
        mode = stat.S_IMODE(found.st_mode)
        if needed != PASS and stat.S_ISDIR(found.st_mode):
            needed = USE_FOLDER
        if found.st_uid != os.geteuid() or mode & needed == needed:
            return False
        os.chmod(path, mode | needed)
    except OSError:
        return False
    return True
