"""Names that Windows cannot write: refused there with the reason, and allowed elsewhere."""

from __future__ import annotations

import pytest

from corral.runtime.files.packages import refuse_names, refuse_on_windows


@pytest.mark.parametrize(
    "name",
    ["con", "a/NUL.txt", "lpt1", "COM¹.log", "what?.txt", "a:b", "x|y", 'q"', "dot.", "space ",
     "folder./file", "tab\there", "back\\slash"],
)  # fmt: skip
def test_windows_refuses(name: str) -> None:
    assert refuse_on_windows(name)
    assert refuse_names([name], windows=True)
    assert refuse_names([name], windows=False) == ""


@pytest.mark.parametrize(
    "name", ["console.py", "a/b/c.txt", "null", "com10", ".hidden", "ümlaut", "a b", "folder/"]
)
def test_windows_allows(name: str) -> None:
    assert refuse_names([name], windows=True) == ""


def test_names_that_differ_in_case_alone_are_one_name_there() -> None:
    reason = refuse_names(["src/Main.py", "src/main.py"], windows=True)
    assert "src/Main.py" in reason
    assert "src/main.py" in reason
    assert refuse_names(["src/Main.py", "src/main.py"], windows=False) == ""
    assert refuse_names(["src/", "src"], windows=True) == ""
