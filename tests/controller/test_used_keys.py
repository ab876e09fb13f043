"""Keys that were used: never forgotten, and rarely imagined."""

from __future__ import annotations

from corral.controller.history.ended import UsedKeys


def test_what_was_added_is_always_found() -> None:
    keys = UsedKeys()
    added = [f"key-{number}" for number in range(10_000)]
    for key in added:
        keys.add(key)
    assert all(keys.perhaps(key) for key in added)


def test_what_was_not_added_is_hardly_ever_found() -> None:
    keys = UsedKeys()
    for number in range(10_000):
        keys.add(f"key-{number}")
    assert sum(keys.perhaps(f"new-{number}") for number in range(10_000)) < 10
