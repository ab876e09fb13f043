"""Spellings of the shared root, and what stays inside it."""

from __future__ import annotations

import pytest

from corral.core.assets import check_shared_path, inside_root
from corral.core.errors import InvalidJob


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/mnt/models/sd/base.bin", "/mnt/models", "sd/base.bin"),
        ("/mnt/models/sd/base.bin", "/mnt/models/", "sd/base.bin"),
        ("/mnt/Models/base.bin", "/mnt/models", None),
        ("/mnt/models2/base.bin", "/mnt/models", None),
        ("/mnt/models/../secret", "/mnt/models", None),
        ("/mnt/models", "/mnt/models", None),
        ("/mnt/models/base.bin", "", None),
        (r"Z:\models\sd\base.bin", r"z:\Models", "sd/base.bin"),
        ("Z:/models/base.bin", "Z:\\models\\", "base.bin"),
        (r"Y:\models\base.bin", r"Z:\models", None),
        (r"Z:\models\..\base.bin", r"Z:\models", None),
        (r"\\nas\models\base.bin", "//NAS/models", "base.bin"),
        ("//nas/models/sd/base.bin", r"\\nas\models", "sd/base.bin"),
        ("//nas/other/base.bin", r"\\nas\models", None),
    ],
)
def test_inside_root(path: str, root: str, inside: str | None) -> None:
    assert inside_root(path, root) == inside


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../x", "a/../../x", "/etc/x", r"C:\x", r"\\nas\x", "a\nb", "//n/x"],
)
def test_paths_that_leave_the_root(path: str) -> None:
    with pytest.raises(InvalidJob, match="shared root"):
        check_shared_path(path)


def test_backslashes_are_a_spelling() -> None:
    assert check_shared_path(r"sd\base.bin") == check_shared_path("sd/./base.bin") == "sd/base.bin"
