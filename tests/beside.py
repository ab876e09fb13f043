"""Which tests may run beside which, where pytest was given several processes (`-n`).

A file's tests stay together and in order: they share what the file starts once. Files whose tests
touch the same thing of the machine count as one file. The longest go first, so that no process is
left alone with one of them at the end.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST = (
    "tests/crash/test_every_write.py",
    "tests/runtime/test_diffusers.py",
    "tests/network/",
    "tests/crash/",
    "tests/e2e/",
)
"""Beginnings of paths, in the order in which they start."""

NAMESPACES = ("tests/network/", "tests/chaos/", "tests/e2e/test_discovery.py")
"""Each makes networks of its own on this machine, with addresses by chance."""

APART = ("tests/crash/test_every_write.py",)
"""Their tests share nothing, and take minutes each."""


class Beside(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out one file after the other."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(NAMESPACES):
            return "namespaces"
        return nodeid if nodeid.startswith(APART) else nodeid.split("::", 1)[0]


def longest_first(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        ranks = (n for n, path in enumerate(LONGEST) if item.nodeid.startswith(path))
        return next(ranks, len(LONGEST))

    items.sort(key=rank)
