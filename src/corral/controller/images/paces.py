"""How fast images are made here, by model and stages: learned from the lines of learning, so that a
restart forgets nothing."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TypeAlias

import msgspec
from msgspec import Struct

from corral.controller.files.jsonl_file import JsonlFile
from corral.core.images.pipeline import Record, Stage
from corral.core.malformed import MALFORMED
from corral.pipelines.needs import effort

RECENT = 1 << 20
"""Bytes of the newest lines that a start looks at."""
MOST = 1000
LAST = 9
"""So many of each kind are remembered. Their middle counts: a job that had to load its model, or
met a busy machine, says little of the next."""

Kind: TypeAlias = tuple[str, str, tuple[type[Stage], ...]]


class Paced(Struct, frozen=True):
    seconds: float
    record: Record | None


_decode = msgspec.json.Decoder(Paced).decode


class Paces:
    def __init__(self) -> None:
        self._seconds: dict[Kind, deque[float]] = {}
        """For one unit of effort."""

    def recall(self, lines: JsonlFile) -> None:
        """What the newest lines say, once."""
        if self._seconds:
            return
        for _, line in lines.read(max(0, lines.size() - RECENT)):
            self.add(line)

    def add(self, line: bytes) -> None:
        """A line of learning; one that is cut or of another version teaches nothing."""
        try:
            found = _decode(line)
        except MALFORMED:
            return
        if found.record is None or found.seconds <= 0:
            return
        kind, seconds = _kind(found.record), found.seconds / effort(found.record)
        last = self._seconds.pop(kind, None) or deque(maxlen=LAST)
        last.append(seconds)
        self._seconds[kind] = last
        if len(self._seconds) > MOST:
            del self._seconds[next(iter(self._seconds))]

    def seconds(self, record: Record) -> float | None:
        """About how long it takes; None where nothing of its kind was ever made."""
        last = self._seconds.get(_kind(record))
        return median(last.copy()) * effort(record) if last else None


def _kind(record: Record) -> Kind:
    return record.backend, record.model, tuple(type(stage) for stage in record.stages)
