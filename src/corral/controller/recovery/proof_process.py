"""The past of a running controller's journal, proven by a process of its own.

It only reads, takes at most half of one processor, and ends when its controller does. What it finds
is the last line that it writes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.journal.snapshot import SnapshotUnusable
from corral.controller.recovery.proof import Proof, check_database, check_reached, check_rows
from corral.core.errors import CorralError, JournalDamaged
from corral.core.job import JobId

NICENESS = 10
LONGEST_PAUSE_S = 1.0


class ProofReport(Struct, omit_defaults=True):
    proven: int = 0
    """So many numbers of the journal, so far."""
    done: bool = False
    damage: str = ""


def prove(journal: Journal, until: int) -> Iterator[int]:
    """Up to which record everything is proven, again and again, to the one that a controller began
    with. Raises JournalDamaged where it is not whole, or where other jobs lived then."""
    proof = Proof(journal)
    while proof.advance(until):
        yield proof.seq
    with journal.one_moment():
        check_reached(journal, proof.seq, until, until)
    _compare(journal, proof.living, until)
    proof.check_rows_met()
    for _ in check_rows(journal):
        yield until
    check_database(journal)


def _compare(journal: Journal, living: dict[JobId, int], until: int) -> None:
    """Jobs that were pruned meanwhile may be in one and not in the other."""
    try:
        known = snapshot.read(journal.folder)
    except SnapshotUnusable:
        known = None
    if known is None or known.seq != until:
        return  # somebody removed it, and the next start will read everything
    for job in living.keys() | known.living.keys():
        seqs = {living.get(job), known.living.get(job)}
        if len(seqs) > 1 and not any(seq and journal.is_pruned(seq) for seq in seqs):
            raise JournalDamaged(
                f"The snapshot that this controller began with is not what the journal says of job "
                f"{job}. Stop the controller and start it again: it then reads the whole journal."
            )


def say(word: ProofReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(word) + b"\n")
    sys.stdout.buffer.flush()


def main(folder: Path, until: int) -> None:
    if sys.platform != "win32":
        os.nice(NICENESS)
    with contextlib.closing(Journal(folder)) as journal:
        began = time.monotonic()
        try:
            for proven in prove(journal, until):
                say(ProofReport(proven=proven))
                time.sleep(min(time.monotonic() - began, LONGEST_PAUSE_S))
                began = time.monotonic()
        except CorralError as error:
            return say(ProofReport(done=True, damage=error.message))
    say(ProofReport(proven=until, done=True))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the controller is gone
        main(Path(sys.argv[1]), int(sys.argv[2]))
