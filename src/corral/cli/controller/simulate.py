"""`corral simulate`: what the scheduler would do with a described cluster, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson

if TYPE_CHECKING:
    from corral.simulate.comparison import Summed


def simulate(
    description: Annotated[Path, typer.Argument(help="A YAML file: workers, models, jobs.")],
    seed: Annotated[
        int | None, typer.Option(min=0, help="The first seed; by default the file's.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many seeds; by default the file's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Runs the real scheduler on a described cluster, beside FIFO and round robin."""
    from corral.simulate.comparison import compare, summed
    from corral.simulate.description import read

    described = read(description)
    first = described.seed if seed is None else seed
    count = described.seeds if seeds is None else seeds
    runs = compare(described, range(first, first + count))
    ways = summed(runs)
    if as_json:
        output.show_json({"ways": ways, "runs": runs})
        return
    jobs = sum(mix.count for mix in described.jobs)
    told = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
    output.show(
        f"{jobs:,} jobs, {len(described.workers)} workers, {len(described.models)} models; {told}"
    )
    output.show()
    _show(ways)
    if not all(run.failed == 0 for run in runs):
        output.show()
        output.show_table(
            ("", "failed for good, at most"),
            [(way, f"{one.failed_most:,}") for way, one in ways.items()],
        )


def _show(ways: dict[str, Summed]) -> None:
    """Means over the seeds, and the worst beside them where it matters."""
    output.show_table(
        ("", "makespan", "x lower bound", "at worst", "model loads", "utilisation"),
        [
            (
                way,
                f"{one.makespan_s:,.0f} s",
                f"{one.ratio:.3f}",
                f"{one.ratio_worst:.3f}",
                f"{one.loads:,.0f}",
                f"{one.utilisation * 100:.0f} %",
            )
            for way, one in ways.items()
        ],
    )
    output.show()
    output.show_table(
        ("wait until the work begins", "jobs", "p50", "p95", "p95 at worst", "longest"),
        [
            (
                f"{way}, {kind}",
                f"{waits.jobs:,}",
                f"{waits.p50_s:,.1f} s",
                f"{waits.p95_s:,.1f} s",
                f"{waits.p95_worst_s:,.1f} s",
                f"{waits.max_s:,.1f} s",
            )
            for way, one in ways.items()
            for kind, waits in one.waits.items()
        ],
    )
    output.show()
    names = list(next(iter(ways.values())).workers)
    output.show_table(
        ("working + loading", *names),
        [
            (
                way,
                *(
                    f"{one.workers[name].working * 100:.0f} + "
                    f"{one.workers[name].loading * 100:.0f} %"
                    for name in names
                ),
            )
            for way, one in ways.items()
        ],
    )
