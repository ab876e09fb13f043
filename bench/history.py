"""A home with a long past: ended jobs, written as the store writes them, but without a controller.

`python -m bench.history FOLDER RECORDS` makes one. Each job has four records: submitted with a
document of about 2 kB, placed, started, succeeded.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle

from corral.controller.ended import Ended
from corral.controller.journal import Journal, Write
from corral.controller.record import Record, sealed
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobSubmitted,
    JobSucceeded,
    Journaled,
    encode_fact,
)
from corral.core.ids import Ids
from corral.core.job import Blob, FunctionCall, Head, Job, Needs, encode_document, record_digest
from corral.core.lifecycle import advance, born

RECORDS_OF_A_JOB = 4
JOBS_AT_ONCE = 2_000
WORKER = "w-of-the-past"
FUNCTION = Blob.of(cloudpickle.dumps(len))
RESULT = Blob.of(cloudpickle.dumps(1024))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def document_of(number: int) -> bytes:
    """A call with an argument of 1 kB."""
    arguments = Blob.of(cloudpickle.dumps(((f"{number:<1024}",), {})))
    return encode_document(Job(work=FunctionCall(FUNCTION, arguments), python=PYTHON))


def life(job: str, number: int, document: bytes, at: float) -> Iterator[Journaled]:
    digest, batch = record_digest(document), f"batch-{number // 1000}"
    yield JobSubmitted(
        job=job, at=at, needs=Needs(), digest=digest, key=f"key-{number}", batch=batch
    )
    yield AttemptPlaced(job=job, at=at, attempt=1, worker=WORKER, why="free")
    yield AttemptStarted(job=job, at=at, attempt=1, warm=True)
    yield JobSucceeded(job=job, at=at + 0.01, attempt=1, seconds=0.01, result=RESULT)


def write_past(folder: Path, records: int, *, queued: int = 0) -> None:
    """Fills the journal in this folder with so many records of ended jobs, and behind them some
    jobs that wait."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, seq, now = Ids(1), 0, time.time()
    jobs = records // RECORDS_OF_A_JOB
    with contextlib.closing(Journal(folder)) as journal:
        for first in range(0, jobs + queued, JOBS_AT_ONCE):
            written, ends = list[Record](), list[Ended]()
            for number in range(first, min(first + JOBS_AT_ONCE, jobs + queued)):
                at = now - (jobs + queued - number) * 0.1
                job, document, head = ids.new(at, seed=number), document_of(number), None
                for fact in life(job, number, document, at):
                    seq += 1
                    prev = head.last_seq if head else 0
                    head = _next(head, fact, seq)
                    kind, body = type(fact).__name__, encode_fact(fact)
                    carried = document if prev == 0 else None
                    written.append(sealed(seq, fact.at, kind, job, prev, body, carried))
                    if head.state.ended:
                        ends.append(Ended.of(head, fact))
                    if number >= jobs:
                        break  # only submitted
            journal.write(Write(written, ends))
        journal.sync_mark()


def _next(head: Head | None, fact: Journaled, seq: int) -> Head:
    if head is None:
        assert isinstance(fact, JobSubmitted)
        return born(fact, seq)
    return advance(head, fact, seq)


if __name__ == "__main__":
    write_past(Path(sys.argv[1]), int(sys.argv[2]))
