"""What a shell offers when somebody presses Tab. A controller that does not answer offers nothing:
a prompt is no place for errors."""

from __future__ import annotations

import contextlib

from corral.core.errors import CorralError

MOST = 50
ID_LENGTH = 15

Offers = list[tuple[str, str]]
"""Words, and what helps to choose among them."""


def jobs(incomplete: str) -> Offers:
    """The newest ids that begin so, in any case; `last` too."""
    from corral.cli.terminal.arguments import client_of_this_home

    begin = incomplete.lower()
    found: Offers = [("last", "the newest job")] if "last".startswith(begin) else []
    with contextlib.suppress(CorralError), client_of_this_home() as client:
        # Ids sort by time: what begins alike is one stretch of the list.
        before = begin.ljust(ID_LENGTH, "z") if begin else ""
        for job in client.jobs(before=before, limit=MOST):
            if job.job_id.startswith(begin):
                found.append((job.job_id, f"{job.name}, {job.state}"))
    return found


def workers(incomplete: str) -> Offers:
    from corral.cli.terminal.arguments import client_of_this_home

    with contextlib.suppress(CorralError), client_of_this_home() as client:
        return [
            (one.name, "connected" if one.connected else "away")
            for one in client.workers()
            if one.name.startswith(incomplete)
        ]
    return []


def states(incomplete: str) -> list[str]:
    from corral.core.job import State

    return [state.value for state in State if state.value.startswith(incomplete)]
