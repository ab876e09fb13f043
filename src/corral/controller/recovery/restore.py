"""`corral restore`: a backup is proven first, then put in the place of what is there.

What was there is kept in `backups/before-restore-…`. The change itself is a list of renames that is
written down before the first one: a start that finds it half done does the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from corral.controller.journal.database import Journal
from corral.controller.journal.mark import Mark
from corral.controller.recovery.backup import (
    FORMAT,
    HEADER,
    JOURNAL,
    MANIFEST,
    MEMBER,
    OWN_FILES,
    PIECE,
    PLAN,
    home_files,
)
from corral.controller.recovery.repair import fenced
from corral.controller.recovery.start import recovered
from corral.core.errors import BackupRefused, CorralError, HomeUnusable
from corral.home import Home, read_json, sync_folder, write_private_json

MAX_SMALL = 256 << 20
"""More than this is no header or manifest."""
PARTS = ("journal", "blobs", "spool", "presets", "learning")


class Contents(Struct, frozen=True):
    """What a backup holds, once it is proven."""

    made_at: float
    corral: str
    last_seq: int
    files: int
    size: int
    living: int


Progress = Callable[[float], None]


def checked(file: Path, *, progress: Progress = lambda share: None) -> Contents:
    """Reads a whole backup and proves it. Raises BackupRefused that says what is wrong."""
    with tempfile.TemporaryDirectory(prefix=".checking-", dir=file.absolute().parent) as folder:
        return _unpacked(file, Path(folder), only_journal=True, progress=progress)


def prepare(
    home: Home, file: Path, *, progress: Progress = lambda share: None
) -> tuple[Path, Contents]:
    """A proven copy of a backup beside what is there now, which stays as it is."""
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.backups.mkdir(mode=0o700, exist_ok=True)
    for leftover in home.backups.glob(".restoring-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = home.backups / f".restoring-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    try:
        if shutil.disk_usage(home.backups).free < file.stat().st_size:
            raise BackupRefused(
                f"{file} has {file.stat().st_size:,} bytes, and the disk of {home.path} has less "
                "room. Nothing was changed. Free some space, then restore again."
            )
        found = _unpacked(file, folder, progress=progress)
        for part in PARTS:
            (folder / part).mkdir(exist_ok=True)
        for inner in (folder, *folder.iterdir()):
            if inner.is_dir():
                sync_folder(inner)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refused(file, str(error)) from error
        raise
    return folder, found


def commit(home: Home, folder: Path) -> None:
    """From here on the next start of a controller in this home, or `swap_in`, restores."""
    folder.rename(home.restore)
    sync_folder(home.path)


def pending(home: Home) -> bool:
    return home.restore.is_dir()


def swap_in(home: Home) -> Path:
    """Puts a prepared backup in the place of what is there; the lock of the home is held. Killed
    in the middle, it goes on when it is called again. Returns where the former state is kept."""
    plan_path = home.restore / PLAN
    plan = read_json(plan_path)
    if not plan:
        _fence(home)
        names = [*PARTS, *(path.name for path in home_files(home.path))]
        stamp = f"before-restore-{time.strftime('%Y%m%d-%H%M%S')}"
        free = (stamp, *(f"{stamp}-{n}" for n in range(2, 1000)))
        plan = {
            "before": next(name for name in free if not (home.backups / name).exists()),
            "aside": [name for name in names if (home.path / name).exists()],
        }
        write_private_json(plan_path, plan)
    before = home.backups / str(plan["before"])
    before.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in plan["aside"]:
        if not (before / name).exists():
            (home.path / name).rename(before / name)
    sync_folder(before)
    for path in sorted(home.restore.iterdir()):
        if path.name != plan_path.name:
            path.rename(home.path / path.name)
    sync_folder(home.path)
    done = home.backups / f".restoring-{secrets.token_hex(4)}"
    home.restore.rename(done)  # at once: half a removed plan would look like a new one
    sync_folder(home.path)
    shutil.rmtree(done, ignore_errors=True)
    return before


def _fence(home: Home) -> None:
    """Nothing that happened after the backup may be taken for something that happens from now on:
    numbers go on above all that were promised, and attempts get numbers that nobody had."""
    promised = 0
    if (home.journal / "mark").exists():
        with contextlib.closing(Mark(home.journal / "mark")) as mark:
            promised = mark.seq or 0
    with contextlib.closing(Journal(home.restore / "journal")) as journal:
        fenced(journal, promised)


# --- reading the file ---


def _unpacked(
    file: Path, folder: Path, *, progress: Progress, only_journal: bool = False
) -> Contents:
    seen: dict[str, tuple[int, str]] = {}
    header: dict[str, Any] = {}
    manifest: dict[str, Any] | None = None
    size = max(file.stat().st_size, 1)
    try:
        with tarfile.open(file, "r|") as tar:
            for member in tar:
                _check_member(file, member, seen, manifest)
                source = tar.extractfile(member)
                assert source is not None, "a plain file has bytes"
                small = member.name in (HEADER, MANIFEST)
                wanted = not small and (member.name == JOURNAL or not only_journal)
                place = _target(folder / member.name) if wanted else contextlib.nullcontext()
                with place as target:
                    data = _copied(source, member.size, target, keep=small)
                seen[member.name] = (member.size, data[1])
                if member.name == HEADER:
                    header = _object(data[0])
                    if (found := header.get("format")) != FORMAT:
                        why = f"its format is {found!r}, and this Corral reads {FORMAT}"
                        raise _refused(file, why)
                elif member.name == MANIFEST:
                    manifest = _object(data[0])
                progress(member.offset_data / size)
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise _refused(file, f"it cannot be read to its end: {error}") from error
    _check_whole(file, header, manifest, seen)
    living = _proven(file, folder / "journal", header["last_seq"])
    progress(1.0)
    return Contents(
        made_at=float(header["made_at"]),
        corral=str(header["corral"]),
        last_seq=int(header["last_seq"]),
        files=len(seen),
        size=sum(length for length, _ in seen.values()),
        living=living,
    )


def _check_member(
    file: Path,
    member: tarfile.TarInfo,
    seen: dict[str, tuple[int, str]],
    manifest: dict[str, Any] | None,
) -> None:
    name = member.name
    if manifest is not None:
        raise _refused(file, f"{name[:100]!r} follows behind its manifest")
    if not seen and name != HEADER:
        raise _refused(file, "it does not begin as a backup does")
    if not member.isreg() or member.issparse():
        raise _refused(file, f"{name[:100]!r} is no plain file")
    if not MEMBER.fullmatch(name) or name in OWN_FILES - {HEADER, MANIFEST}:
        raise _refused(file, f"{name[:100]!r} has no place in a home")
    if name in seen:
        raise _refused(file, f"{name[:100]!r} is in it twice")
    if name in (HEADER, MANIFEST) and member.size > MAX_SMALL:
        raise _refused(file, f"its {name} has {member.size:,} bytes")


def _check_whole(
    file: Path,
    header: dict[str, Any],
    manifest: dict[str, Any] | None,
    seen: dict[str, tuple[int, str]],
) -> None:
    if manifest is None:
        raise _refused(file, "its end is missing: it was cut off")
    listed = {name: tuple(entry) for name, entry in manifest.items()}
    found = {name: entry for name, entry in seen.items() if name != MANIFEST}
    for name in sorted(listed.keys() | found.keys()):
        if listed.get(name) != found.get(name):
            raise _refused(file, f"{name[:100]!r} is not what its manifest says")
        digest = name.rpartition("/")[2]
        if name.startswith("blobs/") and len(digest) == 64 and found[name][1] != digest:
            raise _refused(file, f"{name[:100]!r} has other bytes than its name says")
    if JOURNAL not in found:
        raise _refused(file, "there is no journal in it")
    if not isinstance(header.get("last_seq"), int) or "made_at" not in header:
        raise _refused(file, "its header is not complete")


def _proven(file: Path, folder: Path, last_seq: int) -> int:
    """How many jobs live in the journal, each of its records proven."""
    try:
        with contextlib.closing(Mark(folder / "mark")) as mark:
            mark.write(last_seq)
            mark.sync()
        with contextlib.closing(Journal(folder)) as journal:
            return len(recovered(journal).heads)
    except HomeUnusable as error:
        raise _refused(file, f"its journal cannot be used: {error.message}") from error
    except CorralError as error:
        raise _refused(file, f"its journal is not whole: {error.message}") from error


@contextlib.contextmanager
def _target(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _copied(
    source: IO[bytes], size: int, target: IO[bytes] | None, *, keep: bool
) -> tuple[bytes, str]:
    digest, left, kept = hashlib.sha256(), size, list[bytes]()
    while left:
        data = source.read(min(left, PIECE))
        if not data:
            raise EOFError("it was cut off")
        digest.update(data)
        left -= len(data)
        if target is not None:
            target.write(data)
        if keep:
            kept.append(data)
    return b"".join(kept), digest.hexdigest()


def _object(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _refused(file: Path, reason: str) -> BackupRefused:
    return BackupRefused(
        f"{file} cannot be restored: {reason}. Nothing was changed. Use another backup."
    )


def when(made_at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(made_at))
