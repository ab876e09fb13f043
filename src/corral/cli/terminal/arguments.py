"""Arguments that several commands have, and what is made of them: a moment, a duration, a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import completion
from corral.core.errors import CorralError, InvalidJob, JobNotFound
from corral.core.text import seconds

if TYPE_CHECKING:
    from corral.contract.views import BatchView
    from corral.sdk.client import Client
    from corral.sdk.handles import Handle
    from corral.sdk.images.batches import BatchHandle

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job id, the beginning of one, or last.",
        autocompletion=completion.jobs,
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Job ids, beginnings of them, or last.",
        autocompletion=completion.jobs,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def client_of_this_home() -> Client:
    from corral.sdk.client import Client

    return Client()


def moment(option: str, text: str) -> float:
    """Seconds since the epoch for a date and time, or for so long ago."""
    from datetime import datetime

    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return max(time.time() - seconds(text), 0.001)
    except InvalidJob:
        raise InvalidJob(
            f"{option} is a date and time as 2026-05-01T12:00, or how long ago as 90s, 30m, 12h, "
            f"2d; got {text!r}."
        ) from None


def find(client: Client, text: str) -> Handle:
    """Which job a person means: a whole id, the beginning of one, or `last`."""
    word = text.strip().lower()
    if word == "last":
        newest = client.jobs(limit=1)
        if not newest:
            raise JobNotFound("There are no jobs yet. Start one with `corral run`.")
        return client.job(newest[0].job_id)
    if len(word) >= completion.ID_LENGTH:
        return client.job(word)
    # Ids sort by time and the list is newest first: what begins like this is one stretch of it.
    page = client.jobs(before=word.ljust(completion.ID_LENGTH, "z"), limit=2) if word else []
    matches = [job.job_id for job in page if job.job_id.startswith(word)]
    if not matches:
        raise JobNotFound(f"No job's id begins with {text!r}. `corral jobs` lists them.")
    if len(matches) > 1:
        raise JobNotFound(f"The ids of several jobs begin with {text!r}; write more of it.")
    return client.job(matches[0])


def find_batch(client: Client, name: str, error: JobNotFound) -> tuple[BatchHandle, BatchView]:
    """The batch of this name and how far it is; where there is none, a job was meant."""
    found = client.open_batch(name)
    try:
        return found, found.progress()
    except CorralError:
        raise error from None
