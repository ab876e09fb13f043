"""Names that Windows cannot write: refused there with the reason, and allowed elsewhere."""

from __future__ import annotations

import pytest

from corral.runtime.files import names


@pytest.mark.parametrize(
    "name",
    ["con", "a/NUL.txt", "lpt1", "COM¹.log", "what?.txt", "a:b", "x|y", 'q"', "dot.", "space ",
     "folder./file", "tab\there", "back\\slash"],
)  # fmt: skip
def test_windows_refuses(name: str) -> None:
    assert names.refuse_on_windows(name)
    assert names.refuse([name], windows=True)
    assert names.refuse([name], windows=False) == ""


@pytest.mark.parametrize(
    "name", ["console.py", "a/b/c.txt", "null", "com10", ".hidden", "ümlaut", "a b", "folder/"]
)
def test_windows_allows(name: str) -> None:
    assert names.refuse([name], windows=True) == ""


def test_names_that_differ_in_case_alone_are_one_name_there() -> None:
    reason = names.refuse(["src/Main.py", "src/main.py"], windows=True)
    assert "src/Main.py" in reason
    assert "src/main.py" in reason
    assert names.refuse(["src/Main.py", "src/main.py"], windows=False) == ""
    assert names.refuse(["src/", "src"], windows=True) == ""
