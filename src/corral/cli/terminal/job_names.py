"""Which job a person means: a whole id, the beginning of one, or `last`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.core.errors import JobNotFound

if TYPE_CHECKING:
    from corral.sdk.client import Client, Handle

ID_LENGTH = 15


def find(client: Client, text: str) -> Handle:
    word = text.strip().lower()
    if word == "last":
        newest = client.jobs(limit=1)
        if not newest:
            raise JobNotFound("There are no jobs yet. Start one with `corral run`.")
        return client.job(newest[0].job_id)
    if len(word) >= ID_LENGTH:
        return client.job(word)
    # Ids sort by time and the list is newest first: what begins like this is one stretch of it.
    page = client.jobs(before=word.ljust(ID_LENGTH, "z"), limit=2) if word else []
    matches = [job.job_id for job in page if job.job_id.startswith(word)]
    if not matches:
        raise JobNotFound(f"No job's id begins with {text!r}. `corral jobs` lists them.")
    if len(matches) > 1:
        raise JobNotFound(f"The ids of several jobs begin with {text!r}; write more of it.")
    return client.job(matches[0])
