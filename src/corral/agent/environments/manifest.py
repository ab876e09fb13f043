"""Folders that are made once and trusted later: a kit, an environment. Such a folder gets its name
when it is whole, with a list of what is in it; an agent that uses it first proves the list.

A small one is proven by its content, so it need not wait for the disk: after a power cut it is as
it was, or made anew. A large one is on the disk before it has its name, and is proven by sizes.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral.home import sync_file_system, sync_folder, write_durably
from corral.runtime.environments.kit import contents, write
from corral.runtime.files.removal import remove_tree

log = structlog.get_logger("corral.agent.environments.manifest")

NAME = "corral-manifest.json"
SMALL_BYTES = 16 << 20


class ManifestEntry(Struct, frozen=True, array_like=True):
    """A file by its size and, in a small folder, its checksum; or where a link leads."""

    size: int
    crc32: int | None = None
    link: str = ""


_decode = msgspec.json.Decoder(dict[str, ManifestEntry]).decode


def finish(building: Path, final: Path) -> None:
    """Gives a folder its name. OSError where something is there already, or the disk fails."""
    small = list_files(building)
    if not small:
        sync_file_system(building)
    building.rename(final)
    sync_folder(final.parent)


def list_files(folder: Path) -> bool:
    """Writes down what is in a folder; whether it is small."""
    found = list(_files(folder))
    small = sum(os.lstat(f"{folder}/{path}").st_size for path in found) <= SMALL_BYTES
    listed = {path: _entry(f"{folder}/{path}", content=small) for path in found}
    write_durably(folder / NAME, msgspec.json.encode(listed))
    return small


def is_whole(folder: Path) -> bool:
    """Whether all that was listed is there, as it was. What came later does not count."""
    try:
        listed = _decode((folder / NAME).read_bytes())
        return bool(listed) and all(
            entry == _entry(f"{folder}/{path}", content=entry.crc32 is not None)
            for path, entry in listed.items()
        )
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False


def drop_unlisted(folder: Path) -> None:
    """Removes what nobody vouches for; OSError where that is not possible."""
    listed = _decode((folder / NAME).read_bytes())
    for path in list(_files(folder)):
        if path not in listed:
            (folder / path).unlink()


def discard(folder: Path) -> None:
    with suppress(OSError):
        remove_tree(str(folder))


def assemble_kit(kits: Path) -> Path:
    """The kit of the installed packages (`runtime.environments.kit`): proven, or made anew."""
    name, found = contents()
    kit = kits / name
    if _is_sound(kit):
        return kit
    building = kits / f".building-{os.getpid()}"
    discard(building)
    write(found, building)
    discard(kit)
    try:
        finish(building, kit)
    except OSError:
        # Somebody else finished the same kit first; theirs is as good.
        discard(building)
        if not is_whole(kit):
            raise
    return kit


def drop_other_kits(kits: Path, kept: Path) -> None:
    """Of earlier versions; only called when no runner of theirs is left."""
    for path in kits.iterdir():
        if path != kept:
            discard(path)


def _is_sound(kit: Path) -> bool:
    """Whether it is as it was made. Bytecode that a build for another Python was about to add goes:
    Python believes its first bytes, whatever became of the rest."""
    try:
        if is_whole(kit):
            drop_unlisted(kit)
            return True
        if kit.exists():
            log.warning("kit_not_proven", kit=kit.name)
    except OSError as error:
        log.warning("kit_not_proven", kit=kit.name, error=str(error))
    return False


def _entry(path: str, *, content: bool) -> ManifestEntry:
    # Text and not Path: an environment may have tens of thousands of them.
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return ManifestEntry(0, 0 if content else None, os.readlink(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "This is neither a file nor a link", path)
    if not status.st_mode & stat.S_IRUSR:  # a job cannot change it, but shut it
        raise OSError(errno.EACCES, "This was shut to its owner", path)
    if not content:
        return ManifestEntry(status.st_size)
    with open(path, "rb", buffering=0) as file:
        return ManifestEntry(status.st_size, zlib.crc32(file.read()))


def _files(folder: Path, inside: str = "") -> Iterator[str]:
    with os.scandir(f"{folder}/{inside}") as entries:
        for entry in entries:
            path = f"{inside}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder, f"{path}/")
            elif path != NAME:
                yield path
