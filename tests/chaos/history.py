"""What clients saw, each by itself, and the laws that follow from it alone.

No entry comes from the controller's files: a controller that lost, doubled or changed something and
keeps tidy books all the same is found out here.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LINES = 120
"""How many lines a job that talks prints."""
LARGE = 20_000
GAP = re.compile(r"\n?\[… \d+ bytes left out …\]\n")
ENDED = ("succeeded", "failed", "cancelled", "rejected")


class Acknowledged(NamedTuple):
    """A submission was answered with a job."""

    door: str
    key: str
    job: str


class Looked(NamedTuple):
    """A job was asked for, or found in a list: the state that it was in between two moments."""

    door: str
    job: str
    state: str
    asked_at: float
    answered_at: float


class Returned(NamedTuple):
    """The value or the failure that a job ended with."""

    door: str
    job: str
    value: object


class Watched(NamedTuple):
    """One event of a job that was followed, over as many connections as it took."""

    watch: int
    job: str
    cursor: tuple[int, int, int]
    """Behind which record, and where in the output of which attempt."""
    kind: str
    attempt: int
    text: str = ""
    state: str = ""


class Read(NamedTuple):
    """All that the last attempt of an ended job wrote."""

    door: str
    job: str
    text: str


Entry = Acknowledged | Looked | Returned | Watched | Read


class History:
    """Any number of clients write; each entry is made when its answer has arrived."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._lock = threading.Lock()
        self._expected: dict[str, tuple[int, str]] = {}
        self.acknowledged: dict[str, tuple[int, str]] = {}
        """By job: the number and the kind of what was asked for."""

    def expect(self, key: str, number: int, kind: str) -> None:
        """What the job of this key was asked to do."""
        self._expected[key] = (number, kind)

    def add(self, entry: Entry) -> None:
        with self._lock:
            self._entries.append(entry)
            if isinstance(entry, Acknowledged):
                self.acknowledged[entry.job] = self._expected[entry.key]

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries)

    def violations(self) -> list[str]:
        return list(violations(self.entries(), self._expected))


def now() -> float:
    return time.monotonic()


def violations(entries: Sequence[Entry], expected: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Every law that these entries break, in a sentence."""
    acknowledged = [one for one in entries if isinstance(one, Acknowledged)]
    yield from one_job_a_key(acknowledged)
    asked = {one.job: expected[one.key] for one in acknowledged}
    looked = [one for one in entries if isinstance(one, Looked)]
    yield from ended_once(asked, looked)
    returned = [one for one in entries if isinstance(one, Returned)]
    yield from right_results(asked, returned)
    watched = [one for one in entries if isinstance(one, Watched)]
    yield from monotone(watched)
    read = [one for one in entries if isinstance(one, Read)]
    yield from whole_output(asked, read)
    yield from watched_output(asked, watched)


def one_job_a_key(acknowledged: Iterable[Acknowledged]) -> Iterator[str]:
    """Whoever sends a key, by whatever door and however often, means one job."""
    jobs: dict[str, set[str]] = defaultdict(set)
    keys: dict[str, set[str]] = defaultdict(set)
    for one in acknowledged:
        jobs[one.key].add(one.job)
        keys[one.job].add(one.key)
    for key, found in jobs.items():
        if len(found) > 1:
            yield f"key {key} was acknowledged as {len(found)} jobs: {sorted(found)}"
    for job, found in keys.items():
        if len(found) > 1:
            yield f"job {job} was acknowledged for {len(found)} keys: {sorted(found)}"


def ended_once(asked: Iterable[str], looked: Iterable[Looked]) -> Iterator[str]:
    """Every acknowledged job was seen ended, always in the same way, and by nobody who asked later
    as anything else."""
    by_job: dict[str, list[Looked]] = defaultdict(list)
    for one in looked:
        by_job[one.job].append(one)
    for job in asked:
        looks = by_job[job]
        ends = [one for one in looks if one.state in ENDED]
        if not ends:
            yield f"job {job} was acknowledged, and nobody saw it end"
            continue
        states = {one.state for one in ends}
        if len(states) > 1:
            yield f"job {job} ended in {len(states)} ways: {sorted(states)}"
        first = min(one.answered_at for one in ends)
        for one in looks:
            if one.state not in ENDED and one.asked_at > first:
                yield f"job {job} was {one.state} at {one.door} after it had ended"


def right_results(asked: dict[str, tuple[int, str]], returned: Iterable[Returned]) -> Iterator[str]:
    for one in returned:
        if one.job in asked and one.value != outcome(*asked[one.job]):
            yield f"job {one.job} {asked[one.job]} returned {str(one.value)[:200]} at {one.door}"


def outcome(number: int, kind: str) -> object:
    """What such a job comes to: the value, or the message of its failure."""
    if kind == "fails":
        return f"as asked, {number}"
    return b"x" * LARGE if kind == "large" else number


def monotone(watched: Iterable[Watched]) -> Iterator[str]:
    """Cursors never go back, also where a watcher had to connect again; nothing follows an end."""
    last: dict[int, Watched] = {}
    for one in watched:
        before = last.get(one.watch)
        last[one.watch] = one
        if before is None:
            continue
        (record, *written), (last_record, *last_written) = one.cursor, before.cursor
        if record < last_record or written < last_written:
            yield f"job {one.job}: cursor {one.cursor} after {before.cursor}"
        if before.kind == "ended":
            yield f"job {one.job}: {one.kind} after its end"


def lines_of(number: int) -> list[str]:
    return [f"{number}:{line}" for line in range(LINES)]


def whole_output(asked: dict[str, tuple[int, str]], read: Iterable[Read]) -> Iterator[str]:
    for one in read:
        number, kind = asked[one.job]
        if kind == "talks" and (wrong := torn(one.text, number)):
            yield f"job {one.job}, output at {one.door}: {wrong}"


def watched_output(asked: dict[str, tuple[int, str]], watched: Iterable[Watched]) -> Iterator[str]:
    """What a follower saw of the last attempt of a job that succeeded."""
    events: dict[int, list[Watched]] = defaultdict(list)
    for one in watched:
        events[one.watch].append(one)
    for seen in events.values():
        number, kind = asked.get(seen[-1].job, (0, ""))
        if kind == "talks" and seen[-1].kind == "ended" and seen[-1].state == "succeeded":
            attempt = seen[-1].attempt
            text = "".join(one.text for one in seen if one.attempt == attempt)
            if wrong := torn(text, number):
                yield f"job {seen[-1].job}, followed: {wrong}"


def torn(text: str, number: int) -> str:
    """What is wrong with the output of a job that talked: lines that are missing without a mark,
    doubled, out of order, or not its own. Beside a mark a line may be cut in two."""
    wanted = lines_of(number)
    places = {line: place for place, line in enumerate(wanted)}
    pieces = GAP.split(text)
    expected = 0
    for index, piece in enumerate(pieces):
        lines = piece.split("\n")
        behind_mark = index > 0
        for n, line in enumerate(lines):
            place = places.get(line, -1)
            if index and n == 0 and place < 0 and any(one.endswith(line) for one in wanted):
                continue
            before_mark = index < len(pieces) - 1 and n == len(lines) - 1
            if before_mark and expected < LINES and wanted[expected].startswith(line):
                continue
            if not line:
                continue
            if place == expected or (behind_mark and place > expected):
                expected, behind_mark = place + 1, False
            else:
                return f"{line[:80]!r} where line {expected} of {LINES} belongs"
    if expected < LINES and (len(pieces) == 1 or pieces[-1]):
        return f"it breaks off before line {expected} of {LINES} without a mark"
    return ""
