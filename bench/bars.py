"""What Corral has to reach, and the names of what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Medians = Mapping[str, Mapping[str, float]]
"""By system, by figure."""

CORRAL = "Corral"
CELERY = "Celery + Redis, durable"
RAY = "Ray"


class Figure(NamedTuple):
    key: str
    name: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    times: tuple[str, float] | None = None
    """A peer of the same run whose figure, times this, is the bar."""


FIGURES = (
    Figure("end_to_end_per_s", "end to end", "jobs/s", at_least=4000),
    Figure("end_to_end_per_s", "end to end beside Celery", "jobs/s", 0, times=(CELERY, 10)),
    Figure("end_to_end_per_s", "end to end beside Ray", "jobs/s", 0, times=(RAY, 2.5)),
    Figure("latency_p50_ms", "idle latency, p50", "ms", at_most=2.5),
    Figure("latency_p50_ms", "idle latency beside Celery", "ms", None, 0, (CELERY, 0.5)),
    Figure("latency_p99_ms", "idle latency, p99", "ms", at_most=10),
    Figure("submit_one_by_one_per_s", "submit, one by one", "/s", at_least=900),
    Figure("submit_64_in_flight_per_s", "submit, 64 in flight", "/s", at_least=2500),
    Figure("submit_batches_per_s", "submit, batches of 1,000", "/s", at_least=20_000),
    Figure("cold_start_s", "cold start to the first result", "s", at_most=2.5),
    Figure("idle_pss_mb", "idle memory (PSS)", "MB", at_most=160),
    Figure("idle_rss_mb", "idle memory (RSS)", "MB"),
    Figure("before_short_queue_per_s", "throughput, 1,000 waiting", "jobs/s"),
    Figure("before_long_queue_per_s", "throughput, 100,000 waiting", "jobs/s"),
    Figure("queue_ratio", "100,000 waiting ÷ 1,000 waiting", "", at_least=0.9),
    Figure("runner_killed_s", "kill -9 of a runner → running again", "s", at_most=1),
    Figure("controller_killed_lost", "kill -9 of the controller, lost of 1,000", "", at_most=0),
    Figure("controller_killed_healthy_s", "its restart → healthy", "s"),
    Figure("controller_killed_working_s", "its restart → working again", "s", at_most=1.5),
    Figure("start_warm_p50_ms", "submit → user code, warm runner, p50", "ms", at_most=5),
    Figure("start_fresh_p50_ms", "submit → user code, fresh process, p50", "ms", at_most=150),
)

COMPARED = (
    ("end_to_end_per_s", "end to end, jobs/s"),
    ("latency_p50_ms", "latency p50, ms"),
    ("latency_p99_ms", "p99, ms"),
    ("submit_one_by_one_per_s", "submit one by one, /s"),
)


class Judged(NamedTuple):
    name: str
    value: float
    unit: str
    bar: str
    met: bool | None
    """None where there is no bar, or the peer that makes it was not measured."""


def judge(medians: Medians) -> list[Judged]:
    """Every figure of Corral beside its bar."""
    ours = medians.get(CORRAL, {})
    return [judged(figure, ours[figure.key], medians) for figure in FIGURES if figure.key in ours]


def judged(figure: Figure, value: float, medians: Medians) -> Judged:
    low, high, suffix = figure.at_least, figure.at_most, ""
    if figure.times:
        peer, factor = figure.times
        if figure.key not in medians.get(peer, {}):
            return Judged(figure.name, value, figure.unit, f"{peer} was not measured", None)
        limit = medians[peer][figure.key] * factor
        low, high = (limit, None) if low is not None else (None, limit)
        suffix = f" ({factor:g} × {peer})"
    if low is not None:
        return Judged(figure.name, value, figure.unit, f"≥ {told(low)}{suffix}", value >= low)
    if high is not None:
        return Judged(figure.name, value, figure.unit, f"≤ {told(high)}{suffix}", value <= high)
    return Judged(figure.name, value, figure.unit, "", None)


MARKS = {True: "met", False: "MISSED", None: ""}


def line(bar: Judged) -> str:
    """One figure for the terminal."""
    value = f"{told(bar.value)} {bar.unit}".strip()
    return f"  {bar.name:<42}  {value:<12}  {bar.bar:<8}  {MARKS[bar.met]}".rstrip()


def told(value: float) -> str:
    """
    >>> told(12345.6), told(123.45), told(2.345), told(0), told(0.0264)
    ('12,346', '123', '2.35', '0', '0.026')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 or not value else f"{value:.2g}"
