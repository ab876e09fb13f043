"""Whether the kernel ended a process because memory ran out: asked of the counter of the control
group that this process lives in, and where nobody counts, of the memory that there is.

The machine's own counter (`oom_kill` in /proc/vmstat) also tells of everybody else's processes.
"""

from __future__ import annotations

import os

NEAR_LIMIT = 0.8
"""A process that held so much of all there is was killed for that, where nobody counts."""


class MemoryKills:
    def __init__(self, proc: str = "/proc") -> None:
        self._counter, limit = _second(proc) or _first(proc) or ("", 0)
        self._limit, self._machine = limit, _machine_bytes(proc)
        self.seen = -1
        """How many there were when somebody last looked; -1: nobody counts."""
        self.look()

    @property
    def limit_bytes(self) -> int:
        """What all that lives here may hold together; 0: nobody knows."""
        return min(filter(None, (self._limit, self._machine)), default=0)

    @property
    def where(self) -> str:
        """What has that limit."""
        return "machine" if self.limit_bytes == self._machine else "control group"

    def look(self) -> None:
        self.seen = -1
        for words in _lines(self._counter):
            if words[0] == "oom_kill":
                self.seen = int(words[1])

    def since(self, before: int, held_bytes: int) -> bool:
        """Whether the kernel ended one since so many were `seen`, that held so much at most."""
        self.look()
        if min(self.seen, before) >= 0:
            return self.seen > before
        return 0 < self.limit_bytes * NEAR_LIMIT <= held_bytes


def folder(proc: str, controller: str = "") -> tuple[str, str]:
    """The folder of the group that this process lives in, and where its tree is mounted: of
    version 2, or of a controller of version 1. Empty where there is none."""
    path = ""
    for line in _text(f"{proc}/self/cgroup").splitlines():
        controllers, _, place = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            path = place
    for words in _lines(f"{proc}/self/mountinfo") if path else ():
        root, place, rest = words[3], words[4], words[words.index("-") + 1 :]
        is_it = controller in rest[-1].split(",") if controller else rest[0] == "cgroup2"
        if is_it and f"{path}/".startswith(root.rstrip("/") + "/"):
            return os.path.normpath(f"{place}/{path[len(root.rstrip('/')) :]}"), place
    return "", ""


def _second(proc: str) -> tuple[str, int] | None:
    """Of version 2. Its counter is in the nearest group whose memory is counted."""
    here, top = folder(proc)
    counter, limits = "", []
    while here and len(here) >= len(top):
        if not counter and os.path.exists(f"{here}/memory.events"):
            counter = f"{here}/memory.events"
        limits += [int(word) for (word,) in _lines(f"{here}/memory.max") if word.isdigit()]
        here = os.path.dirname(here) if here != top else ""
    return (counter, min(limits, default=0)) if counter else None


def _first(proc: str) -> tuple[str, int] | None:
    here, _ = folder(proc, "memory")
    if not here:
        return None
    figures = dict(_lines(f"{here}/memory.stat"))
    limit = int(figures.get("hierarchical_memory_limit", 0))
    return f"{here}/memory.oom_control", limit


def _machine_bytes(proc: str) -> int:
    for words in _lines(f"{proc}/meminfo"):
        if words[0] == "MemTotal:":
            return int(words[1]) * 1024
    return 0


def _lines(path: str) -> list[list[str]]:
    """Its lines that are not empty, in words."""
    return [words for line in _text(path).splitlines() if (words := line.split())]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
