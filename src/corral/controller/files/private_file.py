"""Small private files of the home, such as tokens and the roster: read and replaced whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec

from corral.core.errors import HomeUnusable, StorageFailed
from corral.home import make_folder, write_private_json

T = TypeVar("T")


def read_kept(path: Path, kind: type[T], remedy: str) -> T:
    """What is in the file, or an empty one of its kind where there is none yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return kind()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HomeUnusable(
            f"{path} cannot be read ({error}). Restore the file, or delete it and {remedy}."
        ) from error


async def write_kept(path: Path, value: object) -> None:
    """Durable when this returns; as it was when it raises. Its folder is made where it lacks."""
    try:
        await asyncio.to_thread(make_folder, path.parent)
        await asyncio.to_thread(write_private_json, path, msgspec.to_builtins(value))
    except OSError as error:
        raise StorageFailed(
            f"{path} could not be written ({error.strerror}). Free some space, then try again."
        ) from error
