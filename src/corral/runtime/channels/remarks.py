"""What a job is told of its own end, among what it prints. Standard library only."""

from __future__ import annotations

import math

DEFAULT_DURATION_S = 3600.0
WARN_AT, WARN_FROM_S, TELL_DEFAULT_S = 0.9, 60.0, 30.0


def due(duration_s: float, ran_s: float, said_at: float) -> float:
    """The share of its duration at which a job is to be told of its end now, or 0; `said_at` is
    that at which it was told last."""
    passed = (one for one in _shares(duration_s) if said_at < one <= ran_s / duration_s)
    return max(passed, default=0.0)


def next_s(duration_s: float, said_at: float) -> float:
    """How long it runs until that is so."""
    return min((one * duration_s for one in _shares(duration_s) if one > said_at), default=math.inf)


def _shares(duration_s: float) -> list[float]:
    """In time, where that is long enough to do something about it; and early of an end that nobody
    chose."""
    shares = [TELL_DEFAULT_S / duration_s] if duration_s == DEFAULT_DURATION_S else []
    return [*shares, WARN_AT] if duration_s >= WARN_FROM_S else shares


def of_its_end(job: str, duration_s: float, left_s: float, at: float) -> str:
    """The sentence that is `due`."""
    if at < WARN_AT:
        return (
            f"this job is ended after {_span(duration_s)}, which holds where no other duration "
            'is given (`--duration 12h`, duration="12h").'
        )
    return (
        f"in {_span(left_s)} this job is ended, after its duration of {_span(duration_s)}. "
        f"`corral extend {job} 2h` gives it more time. What job.checkpoint saved stays: "
        f"`corral retry {job} --duration 12h` goes on from there."
    )


def extended(duration_s: float, left_s: float) -> str:
    return (
        f"this job was given more time: it is ended after {_span(duration_s)}, in {_span(left_s)}."
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    for size, name in ((86_400, "d"), (3600, "h")):
        if seconds >= size * 2:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 60:.1f} min"
