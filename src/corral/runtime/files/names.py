"""Names of files that Windows has no way to write, whoever made them elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?")
_FORBIDDEN = frozenset('<>:"|?*\\') | frozenset(map(chr, range(32)))


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


def refuse(names: Iterable[str], *, windows: bool = sys.platform == "win32") -> str:
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
