"""Changing what happens to jobs: cancel, retry, extend, front."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import completion, output
from corral.cli.terminal.arguments import (
    AsJson,
    JobArgument,
    JobsArgument,
    client_of_this_home,
    find,
    find_batch,
)
from corral.core.errors import JobNotFound
from corral.core.text import seconds

if TYPE_CHECKING:
    from corral.contract.views import JobView
    from corral.sdk.handles import Handle, RetryOptions

JobsOrBatches = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Job ids, beginnings of them, last, or batches.",
        autocompletion=completion.jobs,
    ),
]
AGAIN = ("failed", "rejected", "cancelled")


def cancel(job: JobsOrBatches, as_json: AsJson = False) -> None:
    """Cancels jobs, waiting or running, or all of a batch."""
    told: list[JobView | dict[str, Any]] = []
    with client_of_this_home() as client:
        for word in job:
            try:
                told.append(find(client, word).cancel())
            except JobNotFound as error:
                batch, _ = find_batch(client, word, error)
                told.append({"batch": batch.id, "cancelled": batch.cancel()})
    output.answer(told, map(_cancelled, told), as_json)


def _cancelled(one: JobView | dict[str, Any]) -> str:
    if not isinstance(one, dict):
        return f"{one.job_id} {one.state}"
    count = one["cancelled"]
    return f"{one['batch']}: {count} job{'s' * (count != 1)} cancelled"


def retry(
    job: JobsOrBatches,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Not from the last checkpoint.")
    ] = False,
    duration: Annotated[
        str, typer.Option(help="After this long it is ended, anew: 90s, 30m, 12h, 2d.")
    ] = "",
    retries: Annotated[int | None, typer.Option(min=0, help="Further tries, anew.")] = None,
    memory_gb: Annotated[float | None, typer.Option(min=0, help="Memory, anew.")] = None,
    as_json: AsJson = False,
) -> None:
    """Submits ended jobs again, each as a new job; of a batch those that did not succeed."""
    handles: list[tuple[Handle, str]] = []
    asked: RetryOptions = {"from_start": from_start}
    if duration:
        asked["duration"] = seconds(duration)
    if retries is not None:
        asked["retries"] = retries
    if memory_gb is not None:
        asked["memory_gb"] = memory_gb
    with client_of_this_home() as client:
        for word in job:
            try:
                handles.append((find(client, word).retry(**asked), word))
            except JobNotFound as error:
                batch, _ = find_batch(client, word, error)
                jobs = batch.jobs()
                again = {one.retry_of for one in jobs}
                failed = (one.job_id for one in jobs if one.state in AGAIN)
                lost = [one for one in failed if one not in again]
                handles += [(client.job(one).retry(**asked), one) for one in lost]
                if not lost:
                    output.say(f"Nothing of {batch.id} failed that was not tried again.")
    if not as_json:
        output.warn(dict.fromkeys(one for handle, _ in handles for one in handle.warnings))
    told = [{"job_id": handle.id, "retry_of": one} for handle, one in handles]
    output.answer(told, (handle.id for handle, _ in handles), as_json)


def extend(
    job: JobArgument,
    by: Annotated[str, typer.Argument(metavar="TIME", help="So much more: 30m, 2h, 1d.")],
    as_json: AsJson = False,
) -> None:
    """Gives a job that waits or runs more time, also for the tries that follow."""
    more_s = seconds(by, "extend")
    with client_of_this_home() as client:
        view = find(client, job).extend(more_s)
    output.answer(view, _extended(view), as_json)


def _extended(view: JobView) -> str:
    limit = f"{view.job_id} is ended after {output.span(view.duration)}"
    if not view.started_at or view.state != "running":
        return limit
    end = view.started_at + view.duration
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(end))
    return f"{limit}: at {at}, in {output.span(max(end - time.time(), 0.0))}"


def front(job: JobsArgument, as_json: AsJson = False) -> None:
    """Moves waiting jobs to the front of their line, the first one named first."""
    with client_of_this_home() as client:
        found = [find(client, one) for one in job]
        views = [handle.to_front() for handle in reversed(found)][::-1]
    output.answer(views, (f"{view.job_id} is next in its line" for view in views), as_json)
