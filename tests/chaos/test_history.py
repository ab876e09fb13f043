"""The checker itself: a history in which all is well, and one for each law that it breaks."""

from __future__ import annotations

import pytest

from tests.chaos.history import (
    Acknowledged,
    Entry,
    Looked,
    Read,
    Returned,
    Watched,
    lines_of,
    torn,
    violations,
)

GAP = "\n[… 17 bytes left out …]\n"
TALK = "".join(f"{line}\n" for line in lines_of(7))
EXPECTED = {"plain": (1, "plain"), "talks": (7, "talks"), "fails": (3, "fails")}
GOOD: list[Entry] = [
    Acknowledged("REST", "plain", "a"),
    Acknowledged("gRPC", "plain", "a"),
    Acknowledged("local", "talks", "b"),
    Acknowledged("local", "fails", "c"),
    Looked("REST", "a", "running", 1.0, 2.0),
    *(Looked("gRPC", job, "succeeded", 3.0, 4.0) for job in "ab"),
    Looked("gRPC", "c", "failed", 3.0, 4.0),
    Looked("REST", "a", "succeeded", 5.0, 6.0),
    Looked("REST", "a", "running", 3.5, 6.0),  # asked before anybody knew better
    Returned("REST", "a", 1),
    Returned("gRPC", "c", "as asked, 3"),
    Watched(1, "b", (1, 1, 0), "state", 1),
    Watched(1, "b", (2, 1, 9), "output", 1, "7:0\n"),  # of an attempt that was lost
    Watched(1, "b", (3, 2, 0), "state", 2),
    Watched(1, "b", (3, 2, 99), "output", 2, TALK),
    Watched(1, "b", (4, 2, 99), "ended", 2, "", "succeeded"),
    Read("REST", "b", TALK),
]


def broken(*more: Entry, without: Entry | None = None) -> list[str]:
    entries = [one for one in GOOD if one != without]
    return list(violations([*entries, *more], EXPECTED))


def test_a_good_history_breaks_no_law() -> None:
    assert broken() == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Acknowledged("REST", "plain", "z"), "acknowledged as 2 jobs"),
        (Acknowledged("REST", "fails", "b"), "acknowledged for 2 keys"),
        (Looked("REST", "a", "failed", 7.0, 8.0), "ended in 2 ways"),
        (Looked("REST", "a", "queued", 7.0, 8.0), "was queued at REST after it had ended"),
        (Returned("local", "a", 2), "returned 2 at local"),
        (Returned("local", "c", "out of memory"), "returned out of memory"),
        (Watched(1, "b", (5, 2, 99), "state", 2), "state after its end"),
        (Watched(2, "b", (4, 2, 98), "output", 2), ""),
        (Read("gRPC", "b", TALK.replace("7:20\n", "")), "'7:21' where line 20"),
    ],
)
def test_each_law_can_be_broken(wrong: Entry, told: str) -> None:
    found = broken(wrong)
    assert any(told in one for one in found) if told else not found


def test_a_job_that_nobody_saw_end() -> None:
    (told,) = broken(without=Looked("gRPC", "c", "failed", 3.0, 4.0))
    assert "nobody saw it end" in told


def test_cursors_that_go_back() -> None:
    back = [Watched(2, "b", (4, 1, 50), "output", 1), Watched(2, "b", (4, 1, 49), "output", 1)]
    assert "cursor (4, 1, 49) after (4, 1, 50)" in broken(*back)[0]
    back = [Watched(2, "b", (4, 1, 50), "state", 1), Watched(2, "b", (3, 1, 50), "state", 1)]
    assert "cursor" in broken(*back)[0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (TALK, True),
        (TALK.replace("7:50\n7:51\n", GAP), True),
        (TALK.replace("7:50\n7:51\n", f"7:5{GAP}1\n"), True),
        (TALK[: TALK.index("7:90")] + GAP, True),
        (GAP + TALK[TALK.index("7:9\n") :], True),
        (TALK.replace("7:50\n", ""), False),
        (TALK.replace("7:50\n", "7:50\n7:50\n"), False),
        (TALK.replace("7:50\n", GAP + "7:10\n"), False),
        (TALK[: TALK.index("7:90")], False),
        (TALK.replace("7:50\n", GAP) + "forged\n", False),
        (TALK + "7:0\n", False),
        ("", False),
    ],
)
def test_output_is_whole_or_marked(text: str, right: bool) -> None:
    assert (torn(text, 7) == "") is right
