"""When a snapshot of the journal is taken, and when there may be none.

Only what this process has proven goes into one: a controller that began with a snapshot takes no
other before the past was proven in the background, and none at all once damage was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from threading import Thread

import structlog

from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord
from corral.controller.recovery.start import Recovered
from corral.core.errors import CorralError
from corral.core.job import Head

log = structlog.get_logger()

EVERY = 50_000
"""Records between two snapshots, and so about how many a start reads; half as many as there are
living jobs where that is more, since each of them is written."""


class Snapshots:
    def __init__(self, journal: Journal, every: int) -> None:
        self._journal, self._every = journal, every
        self._seq = 0
        """The record of the last one."""
        self._writing: Thread | None = None
        self.unproven = 0
        """The record of the one that this controller began with, until the past is proven."""
        self.damage = ""
        """What was found wrong with the journal since the start: a sentence that says what to
        do."""

    def recovered(self, found: Recovered) -> None:
        """A start is done. One that had to read much leaves a snapshot for the next."""
        self.unproven = self._seq = found.since
        if self.due(found.seq, len(found.heads)):
            # Where the last number is that of no record, it was pruned or skipped.
            with contextlib.suppress(CorralError):
                self.take(self._journal.record(found.seq), found.heads.values())

    def due(self, seq: int, living: int) -> bool:
        behind = seq - self._seq
        return (
            behind >= self._every
            and behind * 2 >= living
            and not self.damage
            and not self.unproven
            and (self._writing is None or not self._writing.is_alive())
        )

    def take(self, last: JournalRecord, heads: Iterable[Head]) -> None:
        """Writes one in a thread: what is known of the journal up to this record."""
        self._seq = last.seq
        # Heads never change: the list is as of now, whatever is committed while it is written.
        writing = Thread(target=self._write, args=(last, list(heads)), name="snapshot", daemon=True)
        try:
            writing.start()
        except RuntimeError as error:  # no room for another thread
            log.warning("snapshot_not_written", error=str(error))
        else:
            self._writing = writing

    def _write(self, last: JournalRecord, heads: list[Head]) -> None:
        try:
            snapshot.write_living(self._journal.folder, last, heads)
        except OSError as error:
            log.warning("snapshot_not_written", error=str(error))

    def proven(self) -> None:
        """The journal is whole up to the snapshot that this controller began with."""
        self.unproven = 0

    def damaged(self, sentence: str) -> None:
        """From now on there is no snapshot: the next start reads everything, and refuses."""
        self.damage = sentence
        self.close()
        try:
            snapshot.drop(self._journal.folder)
        except OSError as error:
            log.error("snapshot_not_removed", error=str(error))

    def close(self) -> None:
        """Waits for the one that is being written."""
        if self._writing is not None:
            self._writing.join()
