"""What somebody shut to its owner: Landlock keeps a job from files of its user, but not from
changing their modes."""

from __future__ import annotations

import os
import stat
import sys

PASS, USE_FOLDER, USE_FILE = 0o100, 0o700, 0o600


def restore(path: str) -> bool:
    """Give a file or folder of ours back to us, and the way to it; whether any of it was shut."""
    if sys.platform == "win32":
        return False
    way, place = [], os.path.abspath(path)
    while place != "/":
        way.append(place)
        place = os.path.dirname(place)
    # From above: nothing below a folder that is shut can be seen.
    return sum(_restored(place, use=place == way[0]) for place in reversed(way)) > 0


if sys.platform != "win32":

    def _restored(path: str, *, use: bool) -> bool:
        try:
            found = os.stat(path)
            mode = stat.S_IMODE(found.st_mode)
            needed = PASS
            if use:
                needed = USE_FOLDER if stat.S_ISDIR(found.st_mode) else USE_FILE
            if found.st_uid != os.geteuid() or mode & needed == needed:
                return False
            os.chmod(path, mode | needed)
        except OSError:
            return False
        return True
