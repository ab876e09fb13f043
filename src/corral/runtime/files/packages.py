"""Unpacking a code package: a zip that somebody else made, so nothing in it is trusted."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO

from corral.runtime.failures import AttemptFailed

SIZE_LIMIT = 8_000_000_000
COUNT_LIMIT = 200_000
BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError,
    ValueError,
)  # fmt: skip
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?")
_FORBIDDEN = frozenset('<>:"|?*\\') | frozenset(map(chr, range(32)))
NO_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


def unpack(package: IO[bytes], into: str) -> None:
    """Extract the package into a folder, or fail with the reason before anything is written
    outside of it."""
    try:
        with zipfile.ZipFile(package) as archive:
            entries = archive.infolist()
            _refuse(entries)
            for entry in entries:
                _extract(archive, entry, into)
    except BROKEN as error:
        raise _bad(f"it is not a readable zip file ({error})") from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _bad(f"two of its entries are in each other's way ({error.filename})") from error
    except OSError as error:
        if error.errno in NO_NAMES:
            named = str(error.filename)[:80]
            raise _bad(f"this system has no such names ({error.strerror}: {named}…)") from error
        raise


def _refuse(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > COUNT_LIMIT:
        raise _bad(f"it has {len(entries)} files; at most {COUNT_LIMIT} are possible")
    size = sum(entry.file_size for entry in entries)
    if size > SIZE_LIMIT:
        raise _bad(f"it unpacks to {size} bytes; at most {SIZE_LIMIT} are possible")
    for entry in entries:
        name = entry.filename
        if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
            raise _bad(f"its entry {name!r} would be written outside of the job's folder")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise _bad(
                f"its entry {name!r} is a link or a device; only files and folders are possible"
            )

    if reason := refuse_names(entry.filename for entry in entries):
        raise _bad(f"{reason}; run it on another system, or rename it")


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: str) -> None:
    target = os.path.join(into, entry.filename)
    if entry.is_dir():
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # zipfile reads no more than the size that the entry declares, and the declared sizes were
    # added up before: a bomb cannot grow past the limit.
    with archive.open(entry) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 18)
    mode = (entry.external_attr >> 16) & 0o777
    if mode:
        os.chmod(target, mode | 0o600)


def _bad(reason: str) -> AttemptFailed:
    return AttemptFailed("bad_package", f"The code package cannot be used: {reason}.")


def refuse_on_windows(name: str) -> str:
    """Why Windows cannot have a file of this relative name (with forward slashes), or nothing."""
    for part in name.split("/"):
        if found := sorted(_FORBIDDEN.intersection(part)):
            return f"{name!r} has the character {found[0]!r}, which no name on Windows can have"
        if _DEVICES.fullmatch(part):
            return f"{name!r} is the name of a device on Windows"
        if part not in ("", ".", "..") and part[-1] in ". ":
            return f"{name!r} ends in a dot or a space, which Windows drops"
    return ""


def refuse_names(names: Iterable[str], *, windows: bool = sys.platform == "win32") -> str:
    """Why this system cannot have files of all these names beside each other, or nothing."""
    if not windows:
        return ""
    seen: dict[str, str] = {}
    for name in names:
        if reason := refuse_on_windows(name):
            return reason
        other = seen.setdefault(name.rstrip("/").casefold(), name)
        if other.rstrip("/") != name.rstrip("/"):
            return f"{other!r} and {name!r} are the same name on Windows"
    return ""
