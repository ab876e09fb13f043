"""Requirements as a list: given as one, or read from a requirements file on the client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from corral.core.errors import InvalidJob

_INCLUDE = re.compile(r"^(?:-r|--requirement)(?:\s+|=|(?<=-r))(?P<path>\S.*)$")
_COMMENT = re.compile(r"(^|\s)#.*$")


def resolve(requirements: Iterable[str] | str | os.PathLike[str] | None) -> list[str]:
    """The lines an installer gets. A text or path names a file; anything else is the list."""
    if requirements is None:
        return []
    if isinstance(requirements, str | os.PathLike):
        return list(_read(Path(requirements), ()))
    found = []
    for one in requirements:
        if not isinstance(one, str) or not one.strip():
            raise InvalidJob(f"Each requirement is a text such as 'numpy>=2'; got {one!r}.")
        found.append(_checked(one.strip(), "requirements"))
    return found


def _read(path: Path, above: tuple[Path, ...]) -> Iterator[str]:
    if path.resolve() in above:
        raise InvalidJob(f"The requirements file {path} includes itself.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidJob(
            f"There is no requirements file {str(path)!r}. A single requirement is written as a "
            f"list: requirements=[{str(path)!r}]."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"The requirements file {path} cannot be read: {error}.") from None
    for number, line in _lines(text):
        include = _INCLUDE.match(line)
        if include:
            yield from _read(path.parent / include["path"].strip(), (*above, path.resolve()))
        else:
            yield _checked(line, f"{path}:{number}")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that say something, with continuations joined and comments gone."""
    held, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        first = first if held else number
        if raw.endswith("\\") and not raw.lstrip().startswith("#"):
            held += raw[:-1] + " "
            continue
        line = _COMMENT.sub("", held + raw).strip()
        held = ""
        if line:
            yield first, line
    if line := _COMMENT.sub("", held).strip():
        yield first, line


def _checked(line: str, where: str) -> str:
    option = re.search(r"(?:^|\s)(-{1,2}[A-Za-z][\w-]*)", line)
    if option:
        raise InvalidJob(
            f"{where}: the installer option {option[1]} cannot be used in a job; list requirements "
            "only, and set indexes up on the worker."
        )
    if line.startswith((".", "/", "file:")):
        raise InvalidJob(
            f"{where}: {line} is a path on this machine, which no worker has. Send a folder that "
            "contains the code instead."
        )
    return line
