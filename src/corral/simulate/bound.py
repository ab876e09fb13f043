"""A makespan that nobody can beat on a trace, however clever: the measure for all others."""

from __future__ import annotations

from collections.abc import Sequence

from corral.simulate.description import Description, able
from corral.simulate.trace import TracedJob


def lower_bound(described: Description, trace: Sequence[TracedJob]) -> float:
    """The largest of what must be true in any case:

    - whatever arrives at `t` or later is done by all workers together, after `t`;
    - a job takes its time on the fastest worker that can run it, after it arrived;
    - jobs that only some workers can run are done by those alone;
    - before that, every worker that works with models loads one, and every model is loaded once.

    Failures and outages only make it later, so they are left out, and so is a job that will fail
    for good.
    """
    trace = [work for work in trace if len(work.fails) <= work.retries]
    speeds = {one.name: one.speed for one in described.workers}
    able_for: dict[tuple[str, float], frozenset[str]] = {}
    for work in trace:
        key = (work.model, work.vram_gb)
        if key not in able_for:
            able_for[key] = frozenset(
                one.name for one in described.workers if able(one, *key, described)
            )
    found = [0.0]
    for work in trace:
        fastest = max(speeds[name] for name in able_for[work.model, work.vram_gb])
        found.append(work.at + work.seconds / fastest)
    for group in {*able_for.values(), frozenset(speeds)}:
        speed = sum(speeds[name] for name in group)
        mine = [work for work in trace if able_for[work.model, work.vram_gb] <= group]
        loads = _loads(described, group, mine)
        left = 0.0
        for work in reversed(mine):
            left += work.seconds
            found.append(work.at + left / speed)
        found.append((left + loads) / speed)
    return max(found)


def _loads(described: Description, group: frozenset[str], works: Sequence[TracedJob]) -> float:
    """The work that these workers could have done while they load what they must.

    Each begins with nothing loaded, so each loads at least one model before it does anything (one
    that never works does not help either), and the models that are left are loaded somewhere: at
    best by the slowest. Only where all jobs want a model.
    """
    models = {work.model for work in works}
    if "" in models or not models:
        return 0.0
    seconds = sorted(one.load_s for one in described.models if one.name in models)
    speeds = sorted(one.speed for one in described.workers if one.name in group)
    quickest = seconds[0]
    first = sum(speed * quickest for speed in speeds)
    rest = speeds[0] * sum(seconds[: max(0, len(models) - len(speeds))])
    return first + rest
