"""Wheels made of what is installed are the wheels that were installed."""

from __future__ import annotations

import csv
import hashlib
import io
import stat
import zipfile
from base64 import urlsafe_b64encode
from importlib import metadata
from pathlib import Path

import pytest

from corral import wheel, wheelhouse
from corral.core.errors import NotFound

WHEEL = "Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n"


@pytest.fixture
def installed(tmp_path: Path) -> metadata.Distribution:
    """A package with everything that an installation adds, moves or changes."""
    there = {
        "site/cow/__init__.py": "",
        "site/cow/__pycache__/__init__.cpython-311.pyc": "added",
        "site/the_cow-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: the.Cow\nVersion: 1.2",
        "site/the_cow-1.2.dist-info/WHEEL": WHEEL,
        "site/the_cow-1.2.dist-info/INSTALLER": "pip",
        "site/the_cow-1.2.dist-info/entry_points.txt": "[console_scripts]\nmoo = cow:moo\n",
        "bin/moo": "#!/home/somebody/bin/python\nadded",
        "bin/milk": "#!/home/somebody/bin/python3\nprint('milk')\n",
    }
    for name, text in there.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "bin" / "milk").chmod(0o755)
    about = tmp_path / "site" / "the_cow-1.2.dist-info"
    listed = [f"../{one}" if one.startswith("bin") else one[len("site/") :] for one in there]
    (about / "RECORD").write_text("".join(f"{one},,\n" for one in listed))
    return metadata.Distribution.at(about)


def test_what_an_installation_added_is_left_out(installed: metadata.Distribution) -> None:
    made = io.BytesIO()
    wheelhouse._write(installed, made)
    with zipfile.ZipFile(made) as archive:
        about = "the_cow-1.2.dist-info"
        assert sorted(archive.namelist()) == [
            "cow/__init__.py",
            "the_cow-1.2.data/scripts/milk",
            *(f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")),
        ]
        milk = archive.getinfo("the_cow-1.2.data/scripts/milk")
        assert archive.read(milk) == b"#!python\nprint('milk')\n"
        assert milk.external_attr >> 16 == stat.S_IFREG | 0o755
        for name, digest, _ in csv.reader(io.TextIOWrapper(archive.open(f"{about}/RECORD"))):
            if digest:
                found = urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode()
                assert digest == f"sha256={found.rstrip('=')}"
    assert wheelhouse._file_name(installed) == "the_cow-1.2-py2.py3-none-any.whl"


def test_what_nobody_wrote_down_is_not_offered(installed: metadata.Distribution) -> None:
    """Debian's packages have no RECORD, and a checkout is no wheel."""
    about = Path(str(installed.locate_file("the_cow-1.2.dist-info")))
    (about / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    assert wheelhouse._file_name(installed) == ""
    (about / "direct_url.json").unlink()
    (about / "RECORD").unlink()
    assert wheelhouse._file_name(installed) == ""


def test_everything_that_corral_needs_is_there() -> None:
    stems = {name.split("-")[0].replace("_", "-") for name in wheelhouse.names()}
    assert stems == {line.split("==")[0] for line in wheel.constraints().splitlines()}
    with pytest.raises(NotFound, match="GET /wheels/"):
        wheelhouse.made("../../token")
