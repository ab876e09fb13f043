"""A home with a long past, and how a controller starts from it.

Ended jobs are written as the store writes them, but without a controller. Each has four records:
submitted with a document of about 2 kB, placed, started, succeeded.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import psutil

from bench.controllers import Controller
from corral.controller.history.ended import EndedJob
from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord, record_of
from corral.controller.journal.snapshot import EVERY, JournalSnapshot
from corral.controller.recovery.start import fold
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.ids import Ids
from corral.core.job import Blob, FunctionCall, Job, Needs, document_digest, encode_document
from corral.sdk import figures

RECORDS_OF_A_JOB = 4
JOBS_AT_ONCE = 2_000
QUEUED = 1_000
ASK_EVERY_S = 0.02
PROVEN_WITHIN_S = 900.0
WORKER = "w-of-the-past"
FUNCTION = Blob.of(cloudpickle.dumps(len))
RESULT = Blob.of(cloudpickle.dumps(1024))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def document_of(number: int) -> bytes:
    """A call with an argument of 1 kB."""
    arguments = Blob.of(cloudpickle.dumps(((f"{number:<1024}",), {})))
    return encode_document(Job(work=FunctionCall(FUNCTION, arguments), python=PYTHON))


def life(job: str, number: int, document: bytes, at: float) -> Iterator[Journaled]:
    digest, batch = document_digest(document), f"batch-{number // 1000}"
    yield JobSubmitted(
        job=job, at=at, needs=Needs(), digest=digest, key=f"key-{number}", batch=batch
    )
    yield AttemptPlaced(job=job, at=at, attempt=1, worker=WORKER, why="free")
    yield AttemptStarted(job=job, at=at, attempt=1, warm=True)
    yield JobSucceeded(job=job, at=at + 0.01, attempt=1, seconds=0.01, result=RESULT)


def write_past(folder: Path, records: int) -> None:
    """Fills a journal with about so many records of ended jobs, and some jobs that wait. The last
    snapshot is as old as one gets: nearly as many records lie behind it as it takes for another."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = records // RECORDS_OF_A_JOB
    snapped = jobs - min(jobs, EVERY) // RECORDS_OF_A_JOB
    ids, seq, begun = Ids(1), 0, time.time() - (jobs + QUEUED) * 0.1
    with contextlib.closing(Journal(folder)) as journal:
        for first in range(0, jobs + QUEUED, JOBS_AT_ONCE):
            written, ends = list[JournalRecord](), list[EndedJob]()
            for number in range(first, min(first + JOBS_AT_ONCE, jobs + QUEUED)):
                at = begun + number * 0.1
                job, document, head = ids.new(at, seed=number), document_of(number), None
                for fact in life(job, number, document, at):
                    seq += 1
                    prev, carried = (head.last_seq, None) if head else (0, document)
                    head = fold(head, fact, seq)
                    written.append(record_of(fact, seq, prev, carried))
                    if head.state.ended:
                        ends.append(EndedJob.of(head, fact))
                    if number >= jobs:
                        break  # only submitted
            journal.write(written, ends)
            if first <= snapped < first + JOBS_AT_ONCE and first + JOBS_AT_ONCE <= jobs:
                known = JournalSnapshot(seq, written[-1].crc, {})
                snapshot.write(folder, [msgspec.msgpack.encode(known)])
        journal.sync_mark()


def start(folder: Path, records: int) -> dict[str, Any]:
    """From exec to `/health` and to the first placement; then how it answers while the past is
    proven in the background."""
    controller = Controller(folder, {"worker": {"cpus": 1}})
    write_past(controller.home / "journal", records)
    before = _last_seq(controller.home)
    try:
        controller.launch()
        controller.until_healthy()
        found = {"records": records, "start_healthy_s": time.perf_counter() - controller.begun}
        _until_placed(controller.home, before)
        found["start_placed_s"] = time.perf_counter() - controller.begun
        found |= _while_proven(controller)
        found["start_peak_mb"] = controller.peak_mb()
    finally:
        controller.power_off()
    return found


def _while_proven(controller: Controller) -> dict[str, Any]:
    waits, largest, begun = list[float](), 0, time.perf_counter()
    while _health(controller, waits)["journal"] == "being proven":
        assert time.perf_counter() - begun < PROVEN_WITHIN_S, "it is never proven"
        largest = max(largest, *_proof_sizes(controller), 0)
        time.sleep(ASK_EVERY_S)
    assert _health(controller, waits)["journal"] == "whole"
    return {
        "proof_s": time.perf_counter() - begun,
        "proof_peak_mb": largest / 1e6,
        "health_calls": len(waits),
        "health_p50_ms": figures.quantile(waits, 0.5),
        "health_p99_ms": figures.quantile(waits, 0.99),
        "health_longest_ms": max(waits),
    }


def _health(controller: Controller, waits: list[float]) -> dict[str, Any]:
    begun = time.perf_counter()
    with urllib.request.urlopen(f"{controller.card['http']}/health", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    waits.append((time.perf_counter() - begun) * 1000)
    return found


def _proof_sizes(controller: Controller) -> Iterator[int]:
    assert controller.process is not None
    for child in controller.process.children():
        with contextlib.suppress(psutil.Error):
            if any("proof_process" in word for word in child.cmdline()):
                yield child.memory_info().rss


def _last_seq(home: Path) -> int:
    with contextlib.closing(sqlite3.connect(home / "journal" / "corral.db")) as connection:
        return int(connection.execute("SELECT max(seq) FROM journal").fetchone()[0])


def _until_placed(home: Path, after: int) -> None:
    """Until the journal, read from outside, has a placement behind this record."""
    uri = f"file:{home / 'journal' / 'corral.db'}?mode=ro"
    query = "SELECT 1 FROM journal WHERE seq > ? AND kind = 'AttemptPlaced' LIMIT 1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        while connection.execute(query, (after,)).fetchone() is None:
            time.sleep(0.005)
