"""What somebody who waits for a job is told beside its output: what is done for it before it runs,
and which attempts failed. The command line says the same."""

from __future__ import annotations

import sys

from corral.contract.views import Event, Output, Progress, StateChanged
from corral.core.job import State
from corral.core.text import printable

SILENCE_S = 1.0
"""How long a job may take to run before it is told what that waits for."""


def waiting(job_id: str) -> str:
    return f"waiting; `corral why {job_id}` says for what"


def failed_attempt(event: Event) -> str:
    """Of an attempt that is followed by another; of all else nothing."""
    if not isinstance(event, StateChanged) or not event.code:
        return ""
    return f"Attempt {event.attempt}: {event.message}"


def say(sentence: str) -> None:
    if sys.stderr is not None:
        print(f"corral: {printable(sentence)}", file=sys.stderr, flush=True)


class StartNotes:
    """Follows the events of one job; silent for what starts in time."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._state: str = State.QUEUED
        self._note = ""
        self._said = ""
        self._due = False

    def see(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            self._state, self._note = event.state, ""
        elif isinstance(event, Output):
            self._state = State.RUNNING
        elif isinstance(event, Progress) and self._state != State.RUNNING:
            self._note = event.message
            if self._due:
                self._say_note()

    def silence(self) -> None:
        """Enough time has gone by; from now on each note is said as it comes."""
        self._due = True
        if self._note:
            self._say_note()
        elif self._state == State.QUEUED:
            say(waiting(self._job_id))

    def _say_note(self) -> None:
        what = self._note.rstrip("0123456789% ")  # said once, however far it is
        if what and what != self._said:
            self._said = what
            say(self._note)
