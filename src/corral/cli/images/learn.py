"""Learning from image jobs: learn, rate, learnings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, JobArgument, client_of_this_home, find, moment
from corral.cli.terminal.bar import Bar
from corral.core.errors import InvalidJob
from corral.home import write_durably

if TYPE_CHECKING:
    from corral.contract.views import LearningRunView
    from corral.sdk.client import Client
    from corral.sdk.images.learning import Chosen

SHOWN = 20


def rate(
    job: JobArgument,
    rating: Annotated[int, typer.Argument(min=1, max=5, help="1 to 5, 5 is the best.")],
    note: Annotated[str, typer.Option(help="What you want to remember.")] = "",
    as_json: AsJson = False,
) -> None:
    """Says how good the images of a job are; the last rating of a job counts."""
    with client_of_this_home() as client:
        found = client.learning.rate(find(client, job).id, rating, note)
    output.answer(found, f"{found.job_id} is rated {found.rating} of 5.", as_json)


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
    with client_of_this_home() as client:
        if export is not None:
            count = _export(client.learning.lines(**chosen), export)
            if as_json:
                output.show_json({"file": str(export), "records": count})
            else:
                output.say(f"{count:,} record{'s are' if count != 1 else ' is'} in {export}.")
            return
        found = list(client.learning.records(**chosen))
    if as_json:
        output.show_json(found)
    elif not found:
        output.say("Nothing was learned yet: a record comes with each image job that succeeds.")
    else:
        _show(found)


def learn(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A learning plan, YAML or JSON.")
    ] = None,
    show: Annotated[str, typer.Option(metavar="NAME", help="A run that was started before.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="All runs, newest last.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would be, submit nothing.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Until its end, or return at once.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Tries one setting at several values on all workers, and compares what came of each."""
    if (plan is not None) + bool(show) + list_ != 1:
        raise InvalidJob("Give a plan file, --show NAME or --list, one of the three.")
    with client_of_this_home() as client:
        if list_:
            output.show_list(
                client.learning.runs(),
                ("RUN", "BATCH", "JOBS", "STARTED"),
                lambda one: (one.name, one.batch, str(one.jobs), output.ago(one.started_at)),
                none="No learning runs yet. Start one with `corral learn PLAN`.",
                as_json=as_json,
            )
            return
        if plan is None:
            run = client.learning.show(show)
        else:
            if not plan.is_file():
                raise FileNotFoundError(2, "There is no such plan file", str(plan))
            run = client.learning.start(plan, dry_run=dry_run)
            output.warn(run.warnings)
        if follow and not dry_run:
            run = _follow(client, run, quiet=as_json)
    if as_json:
        output.show_json(run)
    else:
        _show_run(run, dry_run=dry_run)
    steps = (run.result or {}).get("steps", ())
    if any(step["failed"] for step in steps):
        raise typer.Exit(1)


def _follow(client: Client, run: LearningRunView, *, quiet: bool) -> LearningRunView:
    """The run at its end. Ctrl-C leaves it running."""
    try:
        with closing(Bar(enabled=not quiet)) as bar:
            client.learning.follow(
                run, lambda done, jobs: bar.update(done / max(jobs, 1), f"{done} of {jobs} jobs")
            )
    except KeyboardInterrupt:
        output.say(f"{run.name} goes on. Come back with `corral learn --show {run.name}`.")
        raise
    return client.learning.show(run.name)


def _show_run(run: LearningRunView, *, dry_run: bool) -> None:
    result = run.result or {}
    rows = [
        (
            json.dumps(step["value"], ensure_ascii=False),
            f"{step['succeeded']}",
            f"{step['failed'] or ''}",
            str(step["images"]),
            _number(step["mean_seconds"]),
            _number(step["mean_stage_seconds"]),
            f"{step['mean_rating']:.1f} ({step['rated']})" if step["rated"] else "",
        )
        for step in result["steps"]
    ]
    output.show_table(
        (
            result["variable"].upper(),
            *("DONE", "FAILED", "IMAGES", "SECONDS EACH", "IN STAGES", "RATING"),
        ),
        rows,
        spare=("IN STAGES",),
    )
    if dry_run:
        output.say(f"{run.jobs} job{'s' * (run.jobs != 1)}. Nothing was submitted.")
    elif not result["complete"]:
        output.say(f"{result['ended']} of {result['planned']} jobs have ended.")
    else:
        output.say(
            f"`corral images --batch {run.batch}` fetches the images, `corral rate JOB 4` rates "
            f"them, `corral learnings --run {run.name} --export FILE` has it all."
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _export(chunks: Iterable[bytes], target: Path) -> int:
    """Returns how many. A file that is there is replaced only when all of it has arrived."""
    count = 0

    def counted() -> Iterator[bytes]:
        nonlocal count
        for chunk in chunks:
            count += chunk.count(b"\n")
            yield chunk

    if str(target) == "-":
        sys.stdout.buffer.writelines(counted())
        sys.stdout.buffer.flush()
    else:
        write_durably(target, counted(), 0o666)
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
