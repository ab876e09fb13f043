"""What is shown of a large transfer, on a terminal and elsewhere."""

from __future__ import annotations

import os
import sys

import pytest

from corral.sdk.files.progress import SHOWN_FROM, Progress


def test_two_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sending hay", SHOWN_FROM) as progress:
        progress.advance(SHOWN_FROM)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "corral: sending hay (5.0 MB) …"
    assert second.startswith("corral: sending hay (5.0 MB): done in ")
    with Progress("sending straw", SHOWN_FROM - 1) as progress:
        progress.advance(1)
    assert capsys.readouterr().err == ""
    with pytest.raises(KeyError), Progress("sending hay", SHOWN_FROM):
        raise KeyError
    assert capsys.readouterr().err == "corral: sending hay (5.0 MB) …\n"


@pytest.mark.skipif(sys.platform == "win32", reason="it has other terminals")
def test_a_line_that_is_drawn_anew_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("sending \x1b[hay", 2 * SHOWN_FROM) as progress:
            progress.advance(SHOWN_FROM)
        with Progress("sending straw", 2 * SHOWN_FROM) as progress:
            progress.advance(3 * SHOWN_FROM)  # some of it again, after an interruption
        said = os.read(ours, 10_000).decode()
    os.close(ours)
    drawn, done, all_drawn, _ = said.split("\r\x1b[2K")[1:]
    assert drawn == r"corral: sending \x1b[hay: 50%, 5.0 MB of 10.0 MB"
    assert done.startswith(r"corral: sending \x1b[hay (10.0 MB): done in ")
    assert all_drawn == "corral: sending straw: 100%, 10.0 MB of 10.0 MB"
