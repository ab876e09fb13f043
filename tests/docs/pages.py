"""Reading our own Markdown: where the pages are, their tables, their fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\S*)\s*$")
_CODE = re.compile(r"`([^`\n]+)`")


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str
    output: str | None
    """The ```text block that follows directly, when there is one."""


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def pages() -> list[str]:
    tops = ["README.md", "ARCHITECTURE.md", "GLOSSARY.md", "CHANGELOG.md"]
    return [*tops, *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[Block]:
    """Fenced blocks in order; a `text` block right behind another is its output."""
    found: list[Block] = []
    kind, start, body, gap = None, 0, list[str](), True
    for number, line in enumerate(text(page).splitlines(), 1):
        fence = _FENCE.match(line)
        if kind is None and fence:
            kind, start, body = fence[1], number, []
        elif kind is not None and line == "```":
            content = "\n".join(body)
            if kind == "text" and not gap and found:
                found[-1] = found[-1]._replace(output=content)
            else:
                found.append(Block(page, start, kind, content, None))
            kind, gap = None, False
        elif kind is not None:
            body.append(line)
        elif line.strip():
            gap = True
    assert kind is None, f"{page}:{start}: this block is never closed"
    return found


def codes(page: str) -> set[str]:
    """Everything between `backticks`, outside fenced blocks."""
    return {code for line in _prose(page) for code in _CODE.findall(line)}


def rows(page: str) -> dict[str, list[str]]:
    """Table rows whose first cell is one `code`: that code -> all cells, backticks gone."""
    found: dict[str, list[str]] = {}
    for line in _prose(page):
        if line.startswith("| `"):
            cells = [cell.strip().replace("`", "") for cell in line.strip("| \n").split(" | ")]
            found[cells[0]] = cells
    return found


def headings(page: str, level: int) -> list[str]:
    mark = "#" * level + " "
    return [line[len(mark) :].replace("`", "") for line in _prose(page) if line.startswith(mark)]


def section(page: str, heading: str) -> str:
    """The text under one `## heading` up to the next of its level."""
    parts = re.split(r"^## ", text(page), flags=re.MULTILINE)
    for part in parts[1:]:
        title, _, body = part.partition("\n")
        if title.replace("`", "").strip() == heading:
            return body
    raise AssertionError(f"{page} has no section {heading!r}")


def _prose(page: str) -> Iterator[str]:
    fenced = False
    for line in text(page).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line
