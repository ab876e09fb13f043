"""docs/spec-map.md and ARCHITECTURE.md point at things that exist, and leave no criterion out."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, codes, pages, text

FOLDERS = ("src/", "tests/", "docs/", "examples/", "bench/", "tools/", ".ci/")

CRITERIA = dict(enumerate([5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 7, 5], 1))
"""Requirement of the Cumulus document -> how many acceptance criteria it has."""


@pytest.mark.parametrize("page", ["docs/spec-map.md", "ARCHITECTURE.md", "GLOSSARY.md"])
def test_paths_exist(page: str) -> None:
    named = {code.partition("::")[0] for code in codes(page) if code.startswith(FOLDERS)}
    assert named, f"{page} names no path at all"
    gone = sorted(path for path in named if not (ROOT / path).exists())
    assert not gone, f"{page} names what does not exist: {gone}"


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text(page))
    local = [target for target in targets if "://" not in target]
    folder = (ROOT / page).parent
    assert not [target for target in local if not (folder / target).exists()]


def test_every_criterion_of_the_orchestrator_is_mapped() -> None:
    mapped = set(re.findall(r"^\| (\d+\.\d+) \|", text("docs/spec-map.md"), re.MULTILINE))
    wanted = {f"{number}.{n}" for number, count in CRITERIA.items() for n in range(1, count + 1)}
    assert not wanted - mapped, f"not mapped: {sorted(wanted - mapped)}"
    assert not mapped - wanted, f"no such criterion: {sorted(mapped - wanted)}"


def test_every_row_says_where_or_not_yet() -> None:
    lines = [line for line in text("docs/spec-map.md").splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| Requirement", "| Name"))]
    said = ("`", "not yet", "planned", "decided")
    assert not [row for row in rows if not any(word in row for word in said)]


def test_decisions_are_numbered_without_gaps() -> None:
    found = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in found] == list(range(1, len(found) + 1))
