"""Drawn seeds: the same again, each purpose for itself, and none that overlap."""

from __future__ import annotations

from itertools import islice

from corral.pipelines.seeds import SPACE, apart, drawn, given


def test_no_two_are_nearer_than_a_record_is_wide() -> None:
    """With so few places that drawing blindly would hit most of them twice."""
    width = SPACE // 4096
    found = sorted(islice(apart(1, "records", width), 4096))
    assert found == [place * width for place in range(4096)]


def test_the_same_is_drawn_again_and_each_purpose_for_itself() -> None:
    assert drawn(1, "a") == drawn(1, "a")
    assert len({drawn(1, "a"), drawn(1, "b"), drawn(2, "a")}) == 3
    assert all(0 <= drawn(seed, "a", 10) < 10 for seed in range(100))


def test_they_stay_as_they_are_in_every_python() -> None:
    """Recorded: another number here means that old plans give other images."""
    assert drawn(42, "base_seed") == 1883129921
    assert list(islice(apart(42, "records", 1), 3)) == [2625589022, 3781680553, 2674022053]


def test_minus_one_says_nothing() -> None:
    assert given(None, -1, 5, 6) == 5
    assert given(0, 5) == 0
    assert given(None, -1) is None
