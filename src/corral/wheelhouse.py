"""What Corral needs, as wheels once more: from the files installed beside it, for machines of the
same kind that reach no package index. `wheel` is Corral's own.

An installed package keeps what its wheel was: its files (RECORD), for which Pythons and systems it
is (WHEEL). What the installation added is left out, as every installation adds it itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import IO

from corral import wheel
from corral.core.errors import NotFound

ADDED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
PROGRAMS = ("bin", "Scripts")
LEVEL = 1
"""Networks at home are fast, and the controller has other things to do."""


def names() -> dict[str, metadata.Distribution]:
    """The wheels that can be made here, by the names of their files."""
    found = ((_file_name(one), one) for one in wheel.needed().values())
    return {name: distribution for name, distribution in found if name}


def _file_name(distribution: metadata.Distribution) -> str:
    """Empty where nobody wrote down what was installed, as distributors of Linux do."""
    told = distribution.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: ([^-\s]+)-([^-\s]+)-([^-\s]+)$", told, re.MULTILINE)
    if not tags or not distribution.files or _is_linked(distribution):
        return ""
    kinds = (".".join(sorted(set(kind))) for kind in zip(*tags, strict=True))
    return f"{_stem(distribution)}-{'-'.join(kinds)}.whl"


def _stem(distribution: metadata.Distribution) -> str:
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"]).lower()
    return f"{name}-{distribution.version}"


def _is_linked(distribution: metadata.Distribution) -> bool:
    told = distribution.read_text("direct_url.json") or ""
    return bool(re.search(r'"editable":\s*true', told))


def made(name: str) -> IO[bytes]:
    """A file that is gone when it is closed, read from its beginning."""
    distribution = names().get(name)
    if distribution is None:
        raise NotFound(f"There is no wheel {name[:100]!r} here; GET /wheels/ lists them.")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller's)
    try:
        _write(distribution, file)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _write(distribution: metadata.Distribution, file: IO[bytes]) -> None:
    stem, record = _stem(distribution), list[str]()
    about = f"{stem}.dist-info"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:

        def put(name: str, data: bytes, mode: int = 0o644) -> None:
            entry = zipfile.ZipInfo(name, wheel.LONG_AGO)
            # pip makes nothing executable that does not say it is a regular file.
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f'"{name}",sha256={digest},{len(data)}\n')

        for installed, name in _parts(distribution, stem).items():
            data = installed.read_bytes()
            if ".data/scripts/" in name and re.match(rb"#!.*python", data):
                data = b"#!python" + data[len(data.split(b"\n", 1)[0]) :]
            put(name, data, 0o755 if os.access(installed, os.X_OK) else 0o644)
        entry = zipfile.ZipInfo(f"{about}/RECORD", wheel.LONG_AGO)
        archive.writestr(entry, "".join([*record, f"{about}/RECORD,,\n"]))


def _parts(distribution: metadata.Distribution, stem: str) -> dict[Path, str]:
    """Each file that the wheel had, and its name there."""
    generated = {one.name for one in distribution.entry_points if one.group.endswith("_scripts")}
    found: dict[Path, str] = {}
    for part in distribution.files or ():
        installed, name = Path(os.path.abspath(part.locate())), part.as_posix()
        if "__pycache__" in part.parts:
            continue
        if part.parts[0].endswith(".dist-info"):
            if part.name not in ADDED:
                found[installed] = "/".join((f"{stem}.dist-info", *part.parts[1:]))
        elif part.parts[0] != "..":
            found[installed] = name
        elif installed.parent.name in PROGRAMS:
            if installed.stem not in generated:
                found[installed] = f"{stem}.data/scripts/{part.name}"
        elif installed.is_relative_to(sys.prefix):
            found[installed] = f"{stem}.data/data/{installed.relative_to(sys.prefix).as_posix()}"
    return found
