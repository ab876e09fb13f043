"""What `.gitignore` and `.corralignore` leave out, as git understands them. The latter come last:
they may also bring back (`!weights.bin`) what git is told to leave out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

GIT, CORRAL = ".gitignore", ".corralignore"


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    folders_only: bool
    brings_back: bool


class IgnoreFile(NamedTuple):
    folder: str
    rules: tuple[Rule, ...]


class Ignores:
    """The ignore files that hold in one folder, the outermost first."""

    def __init__(self, git: tuple[IgnoreFile, ...] = (), corral: tuple[IgnoreFile, ...] = ()):
        self._git, self._corral = git, corral

    @classmethod
    def above(cls, folder: Path) -> Ignores:
        """Those of the folder that this one lies in; in a git repository all from its top."""
        above = list(folder.resolve().parents)
        top = next((at for at, one in enumerate(above) if (one / ".git").exists()), 0)
        found = cls()
        for one in reversed(above[: top + 1]):
            found = found.inside(str(one))
        return found

    def inside(self, folder: str) -> Ignores:
        git, corral = _read(folder, GIT), _read(folder, CORRAL)
        if git is None and corral is None:
            return self
        return Ignores(
            (*self._git, git) if git else self._git,
            (*self._corral, corral) if corral else self._corral,
        )

    def leaves_out(self, path: str, *, is_folder: bool) -> str:
        """The name of the kind of file that leaves it out, or nothing."""
        for name, files in ((CORRAL, self._corral), (GIT, self._git)):
            for file in reversed(files):
                inside = path[len(file.folder) + 1 :].replace("\\", "/")
                for rule in reversed(file.rules):
                    if rule.folders_only and not is_folder:
                        continue
                    if rule.pattern.fullmatch(inside):
                        return "" if rule.brings_back else name
        return ""


def _read(folder: str, name: str) -> IgnoreFile | None:
    try:
        text = Path(folder, name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rules = (rule(line) for line in text.splitlines())
    return IgnoreFile(folder.rstrip("/\\"), tuple(one for one in rules if one is not None))


@cache
def rule(line: str) -> Rule | None:
    """A line of an ignore file; None where it says nothing.

    >>> rule("/build/").pattern.fullmatch("src/build"), rule("*.pt").pattern.fullmatch("a/b.pt")[0]
    (None, 'a/b.pt')
    """
    text = re.sub(r"(?<!\\)[ \t]+$", "", line)
    if not text or text.startswith("#"):
        return None
    brings_back, text = text.startswith("!"), text.removeprefix("!")
    folders_only, text = text.endswith("/"), text.removesuffix("/")
    anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    start = "" if anchored else "(?:.*/)?"
    return Rule(re.compile(start + _expression(text), re.DOTALL), folders_only, brings_back)


_PARTS = re.compile(
    r"(?P<above>^\*\*/)|(?P<between>/\*\*/)|(?P<below>/\*\*$)|(?P<stars>\*+)|(?P<any>\?)"
    r"|\[(?P<not>[!^]?)(?P<set>\]?[^]]*)\]|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)


def _expression(text: str) -> str:
    return "".join(map(_translated, _PARTS.finditer(text)))


def _translated(part: re.Match[str]) -> str:
    if (inside := part["set"]) is not None:
        inside = inside.replace("\\", "\\\\").replace("]", r"\]").replace("[", r"\[")
        return f"(?!/)[{'^' if part['not'] else ''}{inside}]"
    fixed = {
        "above": "(?:.*/)?",
        "between": "/(?:.*/)?",
        "below": "/.+",
        "stars": "[^/]*",
        "any": "[^/]",
    }
    kind = part.lastgroup or ""
    return fixed[kind] if kind in fixed else re.escape(part[kind])
