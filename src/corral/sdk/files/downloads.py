"""Artifacts as files of this machine. Their names are a job's: they never lead out of the folder
that the caller chose, and never replace a file unasked."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import uuid
from pathlib import Path

from corral.core.errors import Forbidden
from corral.sdk.transport.connection import Connection


def place(folder: Path, name: str) -> Path:
    """Where an artifact goes: below the folder, with the folders of its own name."""
    target = folder / name
    inside = folder.resolve()
    leaves = Path(name).is_absolute() or ".." in Path(name).parts
    if leaves or not target.resolve().is_relative_to(inside) or target.resolve() == inside:
        raise Forbidden(f"The artifact {name!r} would leave {folder}; fetch it by its name.")
    above = [one for one in (target, *target.parents) if one != folder and folder in one.parents]
    if link := next((one for one in above if one.is_symlink()), None):
        raise Forbidden(f"The artifact {name!r} would go through the link {link}; remove it first.")
    return target


def is_hidden(name: str) -> bool:
    """Whether a part of its path begins with a dot: shells, editors and git may obey those."""
    return any(part.startswith(".") for part in name.split("/"))


def in_the_way(path: Path, sha256: str) -> bool:
    return os.path.lexists(path) and not is_there(path, sha256)


def is_there(path: Path, sha256: str) -> bool:
    """Whether these very bytes are there, in a file of their own."""
    try:
        if not sha256 or not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


async def fetch(
    connection: Connection, job: str, name: str, sha256: str, path: Path, *, overwrite: bool
) -> None:
    """Writes it whole or not at all. The same bytes stay; other ones are a FileExistsError."""
    if await asyncio.to_thread(is_there, path, sha256):
        return
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with partial.open("xb") as file:
            await connection.get(job, name, sha256, file.write)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        _name(partial, path, overwrite=overwrite)
    finally:
        partial.unlink(missing_ok=True)


def _name(partial: Path, path: Path, *, overwrite: bool) -> None:
    """Its final name, unless somebody took it meanwhile."""
    if not overwrite:
        try:
            os.link(partial, path)
        except FileExistsError:
            raise _exists(path) from None
        except (OSError, NotImplementedError):  # a file system without hard links
            if os.path.lexists(path):
                raise _exists(path) from None
        else:
            return
    partial.replace(path)


def _exists(path: Path) -> FileExistsError:
    said = "There is another file of this name; choose another place, or overwrite=True"
    return FileExistsError(errno.EEXIST, said, str(path))
