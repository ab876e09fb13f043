"""This Corral as a wheel, for machines that join: made from the files it runs from.

It takes no network, and a checkout in development gives the same as an installed package. The
same files give the same bytes, so that their SHA-256 says whether a worker has this Corral.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from corral import __version__
from corral.core.errors import Unavailable

PACKAGE = Path(__file__).parent
TAGS = "Wheel-Version: 1.0\nGenerator: corral\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)
KEPT = ("METADATA", "entry_points.txt", "licenses/")
"""What of the installed metadata is ours; the rest says how it came here."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"^Version: .*$", re.MULTILINE)


class Wheel(NamedTuple):
    """What a joining machine installs, and with which versions of everything else."""

    version: str
    data: bytes
    constraints: str

    @property
    def name(self) -> str:
        return f"corral-{self.version}-py3-none-any.whl"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def built(package: Path = PACKAGE, version: str = __version__) -> Wheel:
    try:
        ours = metadata.distribution("corral")
    except metadata.PackageNotFoundError as error:
        raise Unavailable(
            "This Corral was not installed by pip or uv, so that it cannot be passed on. Install "
            "Corral on the other machine, then run `corral worker join` there."
        ) from error
    files = {
        f"corral/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = f"corral-{version}.dist-info"
    for part in ours.files or ():
        folder, _, name = part.as_posix().partition("/")
        if folder.endswith(".dist-info") and name.startswith(KEPT):
            files[f"{about}/{name}"] = part.read_binary()
    told = files[f"{about}/METADATA"].decode()
    files[f"{about}/METADATA"] = _VERSION.sub(f"Version: {version}", told, count=1).encode()
    files[f"{about}/WHEEL"] = TAGS.encode()
    return Wheel(version, _zipped(files, f"{about}/RECORD"), constraints())


def _zipped(files: dict[str, bytes], record: str) -> bytes:
    lines = [f"{name},{_digest(data)},{len(data)}\n" for name, data in sorted(files.items())]
    made = io.BytesIO()
    whole = {**dict(sorted(files.items())), record: "".join([*lines, f"{record},,\n"]).encode()}
    with zipfile.ZipFile(made, "w") as wheel:
        for name, data in whole.items():
            entry = zipfile.ZipInfo(name, LONG_AGO)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return made.getvalue()


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def constraints() -> str:
    """The versions that this Corral runs with, of everything it needs: others get the same."""
    found = sorted(needed().items())
    return "".join(f"{name}=={distribution.version}\n" for name, distribution in found)


def needed() -> dict[str, metadata.Distribution]:
    """All that this Corral needs, directly or not, as far as it is installed here."""
    found: dict[str, metadata.Distribution] = {}
    seen, asked = {"corral"}, ["corral"]
    while asked:
        name = asked.pop()
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        if name != "corral":
            found[name] = installed
        for requirement in installed.requires or ():
            required = _NAME.match(requirement)
            if required is None or "extra ==" in requirement.replace("extra==", "extra =="):
                continue
            key = re.sub(r"[-_.]+", "-", required[0]).lower()
            if key not in seen:
                seen.add(key)
                asked.append(key)
    return found


def older(version: str, than: str) -> bool:
    """Whether a version is older; one that is no plain row of numbers is never called so."""
    ours, theirs = _numbers(version), _numbers(than)
    return ours is not None and theirs is not None and ours < theirs


def _numbers(version: str) -> tuple[int, ...] | None:
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        return None
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def is_editable() -> bool:
    """Whether this Corral is a checkout that somebody works on."""
    try:
        told = metadata.distribution("corral").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return True
    return bool(told and re.search(r'"editable":\s*true', told))
