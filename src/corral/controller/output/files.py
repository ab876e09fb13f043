"""Where the spool's files lie: a stream's first segment beside those of other jobs, the others in a
folder of its own, and a note of its length where retention took it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

PRUNED, MORE = "pruned", "more"
"""What a stream's note of its length is called, and the folder of all segments but the first."""
START = re.compile(r"[0-9]{16}")
NAME = re.compile(rf"([^.]+)\.([0-9]+)\.({START.pattern}|{PRUNED}|{MORE})")


def stem_in(folder: Path, name: str) -> Path:
    """The stem of a stream: few folders, which are soon all there."""
    return folder / f"by-{name.partition('.')[0][-1:]}" / name


def spread(older: Path, folder: Path) -> None:
    """Brings segments to where they are looked for: once all of a stream lay side by side, and an
    empty one alone was the note of what was pruned."""
    for path in sorted(older.iterdir()):
        name = NAME.fullmatch(path.name)
        if name is None or not START.fullmatch(name[3]):
            continue
        stem, start = stem_in(folder, f"{name[1]}.{name[2]}"), int(name[3])
        stem.parent.mkdir(exist_ok=True)
        if start and not path.stat().st_size and not segments_of(stem):
            note_length(beside(stem, PRUNED), start)
            path.unlink()
            continue
        place = path_of(stem, start)
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    with contextlib.suppress(OSError):  # somebody's own files stay
        older.rmdir()


def opened(path: Path) -> int:
    """For appending; its folder is made where it is not there yet, which is rare."""
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return os.open(path, how, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, how, 0o600)


def path_of(stem: Path, start: int) -> Path:
    name = f"{start:016d}"
    return stem.parent / f"{stem.name}.{MORE}" / name if start else beside(stem, name)


def beside(stem: Path, part: str) -> Path:
    return stem.with_name(f"{stem.name}.{part}")


def segments_of(stem: Path) -> list[int]:
    """Where its segments begin, in order."""
    found = [0] if path_of(stem, 0).exists() else []
    try:
        names = os.listdir(beside(stem, MORE))
    except FileNotFoundError:
        return found
    return found + sorted(int(name) for name in names if START.fullmatch(name))


def end_of(stem: Path, segments: Sequence[int]) -> int:
    return segments[-1] + path_of(stem, segments[-1]).stat().st_size if segments else 0


def note_length(note: Path, length: int) -> bool:
    """Writes down how long a stream was; False where the disk has no room even for that."""
    try:
        note.write_text(str(length))
        note.chmod(0o600)
    except OSError:
        return False
    return True


def noted_length(stem: Path) -> int:
    """How long a stream was that is gone; 0 where there was none, or nobody knows."""
    try:
        return int(beside(stem, PRUNED).read_bytes())
    except (OSError, ValueError):
        return 0


def taken(path: str, *, counted: bool) -> tuple[int, float]:
    """Bytes of one file or of a folder's files, and when the last of them was written."""
    size, written_at = 0, 0.0
    with contextlib.suppress(FileNotFoundError):
        for one in os.scandir(path) if os.path.isdir(path) else (Path(path),):
            info = one.stat()
            size, written_at = size + info.st_size, max(written_at, info.st_mtime)
    return size if counted else 0, written_at


def covering(segments: list[int], offset: int) -> tuple[int | None, int | None]:
    """The segment that holds `offset`, or the next one if it was dropped, and the one after."""
    found = None
    for index, start in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        if start <= offset:
            found = (start, following)
        elif found is None:
            return start, following
    return found or (None, None)
