"""Packages in an environment, held against the lists that came in their wheels.

uv takes what lies in its cache on trust: after a power cut these may be empty files.
"""

from __future__ import annotations

import csv
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

RECORD_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*-")


def damaged(environment: Path) -> list[str]:
    """Packages with files that are missing, or of another size than their wheel says."""
    pattern = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
    return [
        about.name.partition("-")[0]
        for folder in sorted(environment.glob(pattern))
        for about in sorted(folder.glob("*.dist-info"))
        if _NAME.match(about.name) and not _is_whole(folder, about / "RECORD")
    ]


def _is_whole(folder: Path, record: Path) -> bool:
    try:
        found = os.lstat(record)
        # Code of packages may have written here: it makes us read no pipe, and nothing without end.
        if not stat.S_ISREG(found.st_mode) or found.st_size > RECORD_BYTES:
            return False
        text = record.read_text(encoding="utf-8")
        listed = dict(_sizes(text))
        return bool(text) and all(
            os.lstat(folder / path).st_size == size for path, size in listed.items()
        )
    except (OSError, ValueError, csv.Error):
        return False


def _sizes(record: str) -> Iterator[tuple[str, int]]:
    for row in csv.reader(record.splitlines()):
        if len(row) == 3 and row[2]:
            yield row[0], int(row[2])
