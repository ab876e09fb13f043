"""Looking at jobs: jobs, batches, logs, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import completion, output
from corral.cli.terminal.arguments import (
    AsJson,
    JobArgument,
    client_of_this_home,
    find,
    find_batch,
    moment,
)
from corral.core.errors import JobNotFound

if TYPE_CHECKING:
    from corral.contract.views import JobView
    from corral.sdk.submit.submission import Filters


def jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only jobs in this state. Repeatable.",
            autocompletion=completion.states,
        ),
    ] = None,
    batch: Annotated[str, typer.Option(help="Only jobs of this batch.")] = "",
    pack: Annotated[str, typer.Option(help="Only image jobs of this prompt pack.")] = "",
    active: Annotated[
        bool, typer.Option("--active", help="Only jobs that have not ended.")
    ] = False,
    class_: Annotated[str, typer.Option("--class", help="interactive or batch.")] = "",
    worker: Annotated[
        str,
        typer.Option(help="Only jobs of this worker.", autocompletion=completion.workers),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label. Repeatable."),
    ] = None,
    user: Annotated[str, typer.Option(help="Only this user's jobs.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Submitted since: 2026-05-01T12:00, or 2h ago: 2h.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Submitted before.")] = "",
    text: Annotated[str, typer.Option(help="In the name, the id or what went wrong.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    all_: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Lists jobs, newest first."""
    from corral.core.errors import InvalidJob
    from corral.core.job import State

    for word in state or ():
        if word not in set(State):
            raise InvalidJob(f"There is no state {word!r}; there are {', '.join(State)}.")
    chosen: Filters = {
        "batch": batch,
        "active": active,
        "queue_class": class_,
        "worker": worker,
        "labels": [*(label or []), *([f"pack={pack}"] if pack else [])],
        "user": user,
        "since": moment("--since", since),
        "until": moment("--until", until),
        "text": text,
    }
    asked = state or any(chosen.values())
    output.show_list(
        _listed(state or (), chosen, limit=None if all_ else limit),
        ("JOB", "STATE", "NAME", "CLASS", "TRY", "WORKER", "SUBMITTED", "TOOK"),
        _row,
        none="No such jobs." if asked else "No jobs yet. Start one with `corral run`.",
        as_json=as_json,
        spare=("CLASS", "TRY", "WORKER", "TOOK"),
    )


def _listed(states: Sequence[str], chosen: Filters, *, limit: int | None) -> list[JobView]:
    """The newest, as many as that; without a limit all there are."""
    found: list[JobView] = []
    with client_of_this_home() as client:
        while True:
            size = 1000 if limit is None else min(1000, limit - len(found))
            before = found[-1].job_id if found else ""
            page = client.jobs(states=states, limit=size, before=before, **chosen)
            found += page
            if len(page) < size or (limit is not None and len(found) >= limit):
                return found


def _row(view: JobView) -> tuple[str, ...]:
    return (
        *(view.job_id, view.state, view.name, view.queue_class),
        str(view.attempt or ""),
        view.worker,
        output.ago(view.submitted_at),
        output.span(view.seconds) if view.ended and view.attempt else "",
    )


def logs(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="A job id, the beginning of one, last, or a batch.",
            autocompletion=completion.jobs,
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a job wrote, or all jobs of a batch, one after the other."""
    from corral.cli.terminal.bar import Bar
    from corral.contract.plain import plain_event
    from corral.contract.views import Output

    bar = Bar(enabled=False)
    with client_of_this_home() as client:
        try:
            handles = [find(client, job)]
        except JobNotFound as error:
            batch, _ = find_batch(client, job, error)
            handles = [client.job(one) for one in sorted(one.job_id for one in batch.jobs())]
        for handle in handles:
            if len(handles) > 1 and not as_json:
                output.say(f"{handle.id}:", style="dim")
            for event in handle.events(follow=follow):
                if as_json:
                    output.show_json_line(plain_event(event))
                elif isinstance(event, Output):
                    bar.write(event.stream, event.data, event.skipped)


def why(job: JobArgument, as_json: AsJson = False) -> None:
    """Why a job waits, runs where it runs, or ended as it did."""
    with client_of_this_home() as client:
        explanation = find(client, job).why()
    if as_json:
        output.show_json(explanation)
        return
    output.show(explanation.summary)
    if explanation.workers:
        output.show()
        output.show_table(
            ("WORKER", "WHY"), [(one.worker, one.reason or "fits") for one in explanation.workers]
        )
    if explanation.history:
        output.show()
        for line in explanation.history:
            output.show(line)


def batches(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Lists batches, the one with the newest job first."""
    output.show_list(
        client_of_this_home().batches(limit),
        ("BATCH", "JOBS", "STATES", "SUBMITTED", "TOOK"),
        lambda one: (
            one.batch,
            str(one.jobs),
            ", ".join(f"{count} {state}" for state, count in sorted(one.states.items())),
            output.ago(one.submitted_at),
            output.span(one.ended_at - one.submitted_at) if one.ended else "",
        ),
        none="No batches yet. `corral batch PLAN` renders one.",
        as_json=as_json,
    )
