"""Arguments that several commands have, and what is made of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from corral.contract.views import JobView
    from corral.sdk.client import Client

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job id, the beginning of one, or last.")
]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB", help="Job ids, beginnings of them, or last.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def client_of_this_home() -> Client:
    from corral.sdk.client import Client

    return Client()


def moment(option: str, text: str) -> float:
    """Seconds since the epoch for a date and time, or for so long ago."""
    from datetime import datetime

    from corral.cli.jobs.run import seconds
    from corral.core.errors import InvalidJob

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


def plain_view(view: JobView) -> Any:
    from corral.contract.plain import plain

    return plain(view)
