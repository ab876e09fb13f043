"""What a run found, for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.bars import COMPARED, MARKS, told


def terminal(document: dict[str, Any]) -> str:
    bars = [["figure", "Corral", "bar", ""], *_bars(document)]
    systems = [["system", "durable", *(name for _, name in COMPARED)], *_systems(document)]
    return "\n".join(["", *_aligned(bars), "", *_aligned(systems), ""])


def write(document: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(rounded(document), indent=1) + "\n")
    (folder / "bench.md").write_text(markdown(document))


def markdown(document: dict[str, Any]) -> str:
    machine = document["machine"]
    loads = ", ".join(
        f"{max(found['load_before'] for found in one['systems'].values()):.1f}"
        for one in document["rounds"]
    )
    floors = ", ".join(told(one["fsync_per_s"]) for one in document["rounds"])
    python = ", ".join(f"{one['additions_per_s'] / 1e6:.1f}" for one in document["rounds"])
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [
        "# Corral beside its peers",
        "",
        f"Written by `make bench` on {document['at']}; medians of {len(document['rounds'])} "
        "interleaved rounds. No-op functions with an argument of 1 kB, one worker with two slots.",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python "
        f"{machine['python']}",
        f"- Highest load average at the start of a system, by round: {loads}; fsyncs of 1 kB a "
        f"second, by round: {floors}; million additions of Python a second: {python}",
        f"- Versions: {versions}",
        "",
        "## Corral and its bars",
        "",
        *table(["figure", "Corral", "bar", ""], _bars(document)),
        "",
        "## All systems",
        "",
        *table(["system", "durable", *(name for _, name in COMPARED)], _systems(document)),
        "",
        "How each is set up:",
        "",
        "- Corral: as it comes, `worker.cpus: 2`; `client.map`, `client.run`, `client.submit`; "
        "jobs isolated; every submission answered after its fsync",
        *(f"- {name}: {note}" for name, note in document["notes"].items()),
        "",
    ]
    return "\n".join(lines)


def _bars(document: dict[str, Any]) -> list[list[str]]:
    return [
        [
            one["figure"],
            f"{told(one['value'])} {one['unit']}".strip(),
            one["bar"],
            MARKS[one["met"]],
        ]
        for one in document["bars"]
    ]


def _systems(document: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, found in document["medians"].items():
        durable = "yes" if document["durable"].get(name) else "no"
        rows.append([name, durable, *(told(found[key]) for key, _ in COMPARED)])
    for name, reason in document["refused"].items():
        rows.append([name, "", f"not measured: {reason}", *[""] * (len(COMPARED) - 1)])
    return rows


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def rounded(value: Any) -> Any:
    """Four digits say all that a noisy machine knows."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
