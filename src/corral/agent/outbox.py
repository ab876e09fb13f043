"""What the controller has not confirmed: ends and output of attempts, sent again on reconnect.

While it is away, ends go to this worker's disk too, one line each with its checksum: an agent
that is killed meanwhile delivers them when it is back.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.reports import AttemptLog
from corral.core.job import Blob, Failure, JobId
from corral.core.malformed import MALFORMED
from corral.home import sync_folder
from corral.protocol import messages as wire

log = structlog.get_logger("corral.agent.outbox")

Key = tuple[JobId, int]
Ended = wire.JobCompleted | wire.JobFailed | wire.JobReturned
Told = wire.JobOutput | wire.JobProgress

RESULTS_BYTES = 64 << 20
"""Thousands of results: what is larger than 8 kB is not in them, but with the controller."""

KEPT = "unreceived"
"""The file, in the worker's home."""

HEAD_BYTES = 4096
"""Room for the first line, which the limit does not count."""

OUTPUT_BYTES = 32 << 20
"""More than a socket and a busy controller have on their way: past this, either is stuck. Where
nothing can be sent, jobs wait in their own writes long before."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ended).decode


class Results:
    """Ends of attempts, until they are received."""

    def __init__(self, send: Callable[[wire.Message], None]) -> None:
        self._send, self.narration = send, AttemptLog()
        self.kept: dict[Key, Ended] = {}
        self._emptied = asyncio.Event()
        self._disk: KeptResults | None = None
        self._saved: set[Key] = set()
        self._saving: asyncio.Task[None] | None = None
        self._oldest: Key | None = None
        """At the last beat."""
        self.offline = True
        """Nobody hears what ends now: it goes to the disk too."""

    # --- on disk -------------------------------------------------------------------------------

    def keep_in(self, disk: KeptResults) -> int:
        """From now on; how many results an agent before us left there."""
        self._disk = disk
        self.kept = {(one.job, one.attempt): one for one in disk.read()}
        self._saved = set(self.kept)
        return len(self._saved)

    def beat(self) -> None:
        """What was not received for a whole beat may never be: the way there is slow, or dead."""
        oldest = next(iter(self.kept), None)
        if oldest is not None and oldest == self._oldest:
            self.save()
        self._oldest = oldest

    def save(self) -> None:
        """Whatever is not on disk yet goes there, in the background."""
        if self._saving is None and self._disk is not None and self.kept.keys() - self._saved:
            self._saving = asyncio.create_task(self._save(self._disk))

    async def _save(self, disk: KeptResults) -> None:
        unsaved: list[Key] = []
        try:
            while unsaved := [key for key in self.kept if key not in self._saved]:
                self._saved.update(unsaved)
                wanted = [self.kept[key] for key in unsaved]
                written = await asyncio.to_thread(disk.add, wanted)
                if written < len(wanted):
                    log.warning("results_not_kept", count=len(wanted) - written)
        except OSError as error:
            self._saved.difference_update(unsaved)
            log.warning("results_not_kept", error=str(error))
        finally:
            self._saving = None
            self._clear_disk()

    def _clear_disk(self) -> None:
        """What is left in the file once nobody waits for any of it would only be said again."""
        if self._disk is not None and self._saving is None and not self._saved & self.kept.keys():
            self._saved.clear()
            self._disk.clear()

    def forget(self) -> None:
        """Nobody will ever want to hear of them."""
        self.kept.clear()
        self._saved.clear()
        if self._disk is not None:
            self._disk.clear()
        self._disk = None

    async def close(self) -> None:
        if self.offline:
            self.save()
        if self._saving is not None:
            await self._saving

    # --- what ends -----------------------------------------------------------------------------

    def _end(self, message: Ended) -> None:
        self.kept[message.job, message.attempt] = message
        self._send(message)
        if self.offline:
            self.save()

    def completed(self, attempt: HeldAttempt, result: Blob | None) -> None:
        dispatch = attempt.dispatch
        seconds = time.monotonic() - attempt.since
        job, number = attempt.key
        message = wire.JobCompleted(
            job, number, time.time(), seconds, dispatch.digest, result, attempt.told
        )
        self._end(message)
        self.narration.succeeded(dispatch, seconds)

    def failed(self, attempt: HeldAttempt, failure: Failure) -> None:
        seconds = time.monotonic() - attempt.since if attempt.since else 0.0
        self.refused(attempt.dispatch, failure, seconds, attempt.told)

    def refused(
        self, dispatch: wire.JobDispatch, failure: Failure, seconds: float = 0.0, told: int = 0
    ) -> None:
        """Failed, perhaps before anything was made of it."""
        message = wire.JobFailed(
            dispatch.job, dispatch.attempt, time.time(), seconds, dispatch.digest, failure, told
        )
        self._end(message)
        log.info(
            "attempt_failed",
            job=dispatch.job,
            attempt=dispatch.attempt,
            code=failure.code,
            error=failure.message[:500],
            seconds=round(seconds, 3),
            correlation_id=dispatch.correlation_id,
        )

    def returned(self, job: JobId, attempt: int, reason: str) -> None:
        """It goes back without having run."""
        self._end(wire.JobReturned(job, attempt, reason=reason))

    def say_again(self, job: JobId, attempt: int) -> bool:
        """Whether this attempt has ended here before."""
        message = self.kept.get((job, attempt))
        if message is not None:
            self._send(message)
        return message is not None

    def received(self, job: JobId, attempt: int) -> None:
        self.kept.pop((job, attempt), None)
        if self._saved:
            self._clear_disk()
        if not self.kept:
            self._emptied.set()

    async def until_received(self) -> None:
        while self.kept:
            self._emptied.clear()
            await self._emptied.wait()


class KeptResults:
    """A file that only grows until everything in it was received; then it goes."""

    def __init__(self, path: Path, worker: str, limit: int = RESULTS_BYTES) -> None:
        self._path, self._worker, self._limit = path, worker, limit

    def read(self) -> list[Ended]:
        """What an agent before us left, as far as it came to write; nothing of another worker.
        Whoever reads deletes nothing: its first line may just be on its way."""
        most = self._limit + HEAD_BYTES
        try:
            with self._path.open("rb") as file:
                lines = file.read(most).split(b"\n")
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return []
        if size > most:  # we never write so much: who did?
            log.warning("kept_results_too_large", path=str(self._path), bytes=size, read=most)
        if _body(lines[0]) != self._worker.encode():
            return []
        found = []
        for line in lines[1:]:
            with suppress(*MALFORMED):
                if (body := _body(line)) is not None:
                    found.append(_decode(body))
        return found

    def add(self, ended: Sequence[Ended]) -> int:
        """On disk when this returns. How many were written: fewer where the limit is reached."""
        if not self._is_ours():
            self.clear()
        room = self._limit - (self._path.stat().st_size if self._path.exists() else 0)
        lines, size = [], 0
        for line in map(_line, map(_encode, ended)):
            size += len(line)
            if size > room:
                break
            lines.append(line)
        if lines:
            self._append(lines)
        return len(lines)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        try:
            with self._path.open("rb") as file:
                return _body(file.readline(HEAD_BYTES).rstrip(b"\n")) == self._worker.encode()
        except FileNotFoundError:
            return False

    def _append(self, lines: Sequence[bytes]) -> None:
        new = not self._path.exists()
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "ab") as file:
            # A line that was torn by a crash ends here, and takes no other along.
            file.write(_line(self._worker.encode()) if new else b"\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self._path.parent)


def _line(body: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _body(line: bytes) -> bytes | None:
    """What the line says, if all of it is there."""
    checksum, _, body = line.partition(b" ")
    return body if checksum == b"%08x" % zlib.crc32(body) else None


class SentOutput:
    """Past the bound the oldest goes, and its numbers say what is missing."""

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self._limit = limit
        self._attempts: defaultdict[Key, deque[tuple[Told, int]]] = defaultdict(deque)
        """Each with its size, in the order of their numbers."""
        self._keeping = True
        self.size = 0

    def add(self, message: Told, size: int) -> None:
        if not self._keeping:
            return
        self._attempts[message.job, message.attempt].append((message, size))
        self.size += size
        if self.size > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        """At the expense of the attempt that has the most here."""
        sizes = {key: _size(kept) for key, kept in self._attempts.items()}
        key = max(sizes, key=sizes.__getitem__)
        before = self.size
        while before - self.size < sizes[key] / 8:
            self.size -= self._attempts[key].popleft()[1]
        log.warning("output_not_kept", job=key[0], attempt=key[1], bytes=before - self.size)

    def received(self, key: Key, upto: int) -> None:
        kept = self._attempts.get(key)
        if kept is None:
            return
        while kept and kept[0][0].n <= upto:
            self.size -= kept.popleft()[1]
        if not kept:
            del self._attempts[key]

    def forget(self, key: Key) -> None:
        """The end of this attempt was received, and all it told before that."""
        self.size -= _size(self._attempts.pop(key, ()))

    def again(self, *, acknowledges: bool) -> list[Told]:
        """What a new connection has to say again. A controller that acknowledges nothing would take
        it for something new: nothing is kept for it."""
        if not acknowledges:
            self._attempts.clear()
            self.size = 0
        self._keeping = acknowledges
        return [message for kept in self._attempts.values() for message, _ in kept]


def _size(kept: Iterable[tuple[Told, int]]) -> int:
    return sum(size for _, size in kept)
