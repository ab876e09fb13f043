"""Names of inputs and of files in the shared root, checked without touching a disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath

from corral.core.errors import InvalidJob
from corral.core.text import DEVICES

MAX_NAME = 255


def check_input_names(names: Iterable[str]) -> None:
    """InvalidJob for a name that would leave the work directory, or lie in another's way."""
    taken: dict[str, str] = {}
    for name in names:
        _check(name)
        # Two names that differ in case alone are one file on some workers.
        folded = name.casefold()
        if folded in taken:
            raise InvalidJob(f"The inputs {taken[folded]!r} and {name!r} have the same name.")
        taken[folded] = name
    for folded, name in taken.items():
        for parent in PurePosixPath(folded).parents:
            if (other := taken.get(str(parent))) is not None:
                raise InvalidJob(
                    f"The input {name!r} lies below {other!r}, which is a file. Rename one of them."
                )


def _check(name: str) -> None:
    parts = name.split("/")
    if (
        not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or any(sign in name for sign in '\\:*?"<>|')
        or not {"", ".", ".."}.isdisjoint(parts)
        or any(part != part.rstrip(". ") for part in parts)
        or any(part.partition(".")[0].lower() in DEVICES for part in parts)
    ):
        raise InvalidJob(
            f"{name[:80]!r} cannot be an input's name: use a relative path such as 'data.csv' or "
            f"'models/base.bin', at most {MAX_NAME} characters, without '..' and backslashes."
        )


def check_shared_path(path: str) -> str:
    """A path relative to the shared root, with forward slashes; InvalidJob where it leaves it."""
    shown = path.replace("\\", "/")
    pure = PurePosixPath(shown)
    odd = not shown or not shown.isprintable() or ":" in shown
    if odd or pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise InvalidJob(
            f"{path[:80]!r} is no path inside the shared root: name it from there, as "
            "'checkpoints/base.safetensors'."
        )
    return str(pure)


def named_in_root(path: str, spellings: Iterable[str]) -> str:
    """A path inside the shared root, given from there or by any spelling of the root."""
    for root in spellings:
        if (inside := inside_root(path, root)) is not None:
            return inside
    return check_shared_path(path)


def inside_root(path: str, root: str) -> str | None:
    r"""Where a file lies inside a root, with forward slashes; None if outside. Both may be spelled
    as Windows or as POSIX has it.

    >>> inside_root(r"Z:\models\sd\base.bin", "z:/Models")
    'sd/base.bin'
    >>> inside_root(r"\\nas\models\base.bin", "//NAS/models")
    'base.bin'
    >>> inside_root("/mnt/models/base.bin", "/mnt/models/")
    'base.bin'
    """
    windows = any(text[1:2] == ":" or text[:2] in ("\\\\", "//") for text in (path, root))
    kind = PureWindowsPath if windows else PurePosixPath
    named, above = kind(path), kind(root)
    if not root or ".." in named.parts or not named.is_relative_to(above) or named == above:
        return None
    return named.relative_to(above).as_posix()
