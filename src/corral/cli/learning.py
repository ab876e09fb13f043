"""Learning from image jobs: rate, learnings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli import output
from corral.cli.finding import find
from corral.cli.watching import AsJson, JobArgument, moment

if TYPE_CHECKING:
    from corral.sdk.client import Client
    from corral.sdk.learning import Chosen

SHOWN = 20


def _client() -> Client:
    from corral.sdk.client import Client

    return Client()


@output.guarded
def rate(
    job: JobArgument,
    rating: Annotated[int, typer.Argument(min=1, max=5, help="1 to 5, 5 is the best.")],
    note: Annotated[str, typer.Option(help="What you want to remember.")] = "",
    as_json: AsJson = False,
) -> None:
    """Says how good the images of a job are; the last rating of a job counts."""
    with _client() as client:
        found = client.learning.rate(find(client, job).id, rating, note)
    if as_json:
        output.show_json(found)
    else:
        print(f"{found.job_id} is rated {found.rating} of 5.")


@output.guarded
def learnings(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Ended since: 2026-05-01T12:00, or 8h ago: 8h.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Ended before.")] = "",
    batch: Annotated[str, typer.Option(help="Only of this batch.")] = "",
    run: Annotated[str, typer.Option(help="Only of this learning run.")] = "",
    export: Annotated[
        Path | None, typer.Option(help="Write all as JSON lines into this file; - is stdout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What was learned from image jobs, newest last; --export writes all of it."""
    chosen: Chosen = {
        "since": moment("--since", since),
        "until": moment("--until", until),
        "batch": batch,
        "run": run,
    }
    with _client() as client:
        if export is not None:
            count = _export(client.learning.lines(**chosen), export)
            if as_json:
                output.show_json({"file": str(export), "records": count})
            else:
                output.say(f"{count:,} records are in {export}.")
            return
        found = list(client.learning.records(**chosen))
    if as_json:
        output.show_json(found)
    elif not found:
        output.say("Nothing was learned yet: a record comes with each image job that succeeds.")
    else:
        _show(found)


def _export(chunks: Iterable[bytes], target: Path) -> int:
    """How many. A file that is there is replaced when all of it has arrived."""
    if str(target) == "-":
        count = 0
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            count += chunk.count(b"\n")
        sys.stdout.buffer.flush()
        return count
    incoming, count = target.with_name(f".{target.name}.partial"), 0
    try:
        with incoming.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                count += chunk.count(b"\n")
        os.replace(incoming, target)
    finally:
        incoming.unlink(missing_ok=True)
    return count


def _show(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["job_id"],
            output.ago(one["ended_at"]),
            (one["record"] or {}).get("model", ""),
            " → ".join(stage["stage"] for stage in one["stages"]),
            output.span(one["seconds"]),
            str(len(one["images"])),
            str(one["rating"]["rating"]) if one["rating"] else "",
            one["worker"],
            one["learning"]["plan"],
        )
        for one in found[-SHOWN:]
    ]
    output.show_table(
        ("JOB", "ENDED", "MODEL", "STAGES", "TOOK", "IMAGES", "RATING", "WORKER", "RUN"),
        rows,
        spare=("RUN", "STAGES", "MODEL", "WORKER"),
    )
    if len(found) > SHOWN:
        output.say(f"The last {SHOWN} of {len(found):,}. `--export FILE` writes all of them.")
