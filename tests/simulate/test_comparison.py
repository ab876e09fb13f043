"""The simulation keeps its own rules, and the committed trace shows what the scheduler is worth."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.simulate.bound import lower_bound
from corral.simulate.comparison import WAYS, Summed, compare, quantile, summed
from corral.simulate.description import Description, parse, read
from corral.simulate.trace import draw

COMMITTED = Path(__file__).resolve().parents[2] / "examples" / "simulate" / "mixed.yaml"


@pytest.fixture(scope="module")
def committed() -> dict[str, Summed]:
    described = read(COMMITTED)
    assert len(described.workers) == 4
    assert len({worker.speed for worker in described.workers}) == 4
    assert [model.load_s for model in described.models] == [20.0] * 6
    assert sum(mix.count for mix in described.jobs) == 2000
    assert {mix.seconds for mix in described.jobs} == {(5.0, 30.0)}
    assert described.seeds == 10
    return summed(compare(described, range(described.seeds)))


def test_the_makespan_is_near_the_bound_where_fifo_is_far(committed: dict[str, Summed]) -> None:
    """On every one of the ten seeds."""
    assert committed["corral"].ratio_worst <= 1.10
    assert committed["fifo"].ratio_best >= 1.3
    assert committed["round robin"].ratio_best >= 1.3


def test_interactive_waits_are_bounded(committed: dict[str, Summed]) -> None:
    """A load, and the rest of two jobs on the slowest worker: one that runs, one that was sent."""
    waits = committed["corral"].waits["interactive"]
    assert waits.jobs == 200
    assert waits.p95_worst_s <= 20.0 + 2 * 30.0
    assert waits.max_s <= 120.0


def small(**more: object) -> Description:
    described: dict[str, object] = {
        "workers": [{"name": "slow"}, {"name": "fast", "speed": 2.0}],
        "models": [{"name": "a", "vram_gb": 20}, {"name": "b", "vram_gb": 20, "load_s": 10}],
        "jobs": [{"count": 40, "seconds": [5, 30], "models": {"a": 1, "b": 2}}],
    }
    return parse(described | more, "here")


def test_the_same_seed_gives_the_same_figures() -> None:
    failures = {"attempts": 0.2, "outages": [{"worker": "fast", "at_s": 30, "for_s": 60}]}
    described = small(failures=failures)
    assert compare(described, [3]) == compare(described, [3])
    assert compare(described, [3]) != compare(described, [4])


def test_every_job_ends_whatever_fails() -> None:
    outages = [
        *({"worker": "fast", "at_s": 20 + 20 * n, "for_s": 10} for n in range(20)),
        *({"worker": "slow", "at_s": 27 + 20 * n, "for_s": 10} for n in range(20)),
    ]
    described = small(failures={"attempts": 0.5, "outages": outages})
    for run in compare(described, range(3)):
        assert run.succeeded + run.failed == 40
        assert run.failed, "half of all attempts fail, and jobs have three retries"


def test_an_outage_makes_it_longer_and_a_model_is_loaded_again() -> None:
    calm = compare(small(), [0])
    hit = compare(small(failures={"outages": [{"worker": "fast", "at_s": 50, "for_s": 200}]}), [0])
    for before, after in zip(calm, hit, strict=True):
        assert after.makespan_s > before.makespan_s
        assert after.bound_s == before.bound_s
        assert after.succeeded == 40


def test_without_models_nothing_is_loaded_and_the_bound_is_work_by_speed() -> None:
    described = small(jobs=[{"count": 30, "seconds": [6, 6]}])
    runs = compare(described, [0])
    assert [run.bound_s for run in runs] == [30 * 6 / 3] * 3
    assert [run.loads for run in runs] == [0] * 3
    corral, _, round_robin = runs
    assert corral.makespan_s <= 60 + 6
    assert round_robin.makespan_s == 15 * 6, "half of them on the slow one"


def test_the_bound_by_hand() -> None:
    """200 s of work at speed 3; both workers load one of two models, at best the quick one."""
    described = small(jobs=[{"count": 20, "seconds": [10, 10], "models": {"a": 1, "b": 1}}])
    assert lower_bound(described, draw(described, 0)) == pytest.approx((200 + 3 * 10) / 3)
    late = small(jobs=[{"count": 1, "seconds": [10, 10], "from_s": 500}])
    assert lower_bound(late, draw(late, 0)) == 505


def test_the_bound_knows_who_can_run_what() -> None:
    workers = [{"name": "small", "speed": 9, "vram_gb": 8}, {"name": "big", "vram_gb": 24}]
    described = small(workers=workers, jobs=[{"count": 9, "seconds": [10, 10], "vram_gb": 16}])
    assert lower_bound(described, draw(described, 0)) == 90


def test_a_big_card_keeps_two_models() -> None:
    one = [{"name": "only", "vram_gb": 48}]
    runs = compare(small(workers=one), [0])
    assert {run.loads for run in runs} == {2}
    runs = compare(small(workers=[{"name": "only", "vram_gb": 24}]), [0])
    assert runs[0].loads < runs[1].loads / 2


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    count = draw(st.integers(1, 4))
    names = [f"w{n}" for n in range(count)]
    models = [f"m{n}" for n in range(draw(st.integers(1, 4)))]
    mixes = [
        {
            "count": draw(st.integers(1, 12)),
            "seconds": sorted(draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))),
            "queue_class": draw(st.sampled_from(["batch", "interactive"])),
            "models": dict.fromkeys(draw(st.lists(st.sampled_from(models), unique=True)), 1),
            "over_s": draw(st.sampled_from([0, 100])),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    sizes = st.sampled_from([4, 8, 16])
    described = {
        "workers": [
            {"name": name, "speed": draw(st.sampled_from([0.5, 1, 3])), "vram_gb": draw(sizes)}
            for name in names[1:]
        ]
        + [{"name": names[0], "vram_gb": 16}],
        "models": [
            {"name": name, "vram_gb": draw(sizes), "load_s": draw(st.sampled_from([0, 5, 20]))}
            for name in models
        ],
        "jobs": mixes,
        "failures": {"attempts": draw(st.sampled_from([0, 0, 0.3]))},
    }
    return parse(described, "drawn")


@given(descriptions(), st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_nobody_beats_the_bound_and_nothing_is_left(described: Description, seed: int) -> None:
    jobs = sum(mix.count for mix in described.jobs)
    for run in compare(described, [seed]):
        assert run.makespan_s >= run.bound_s - 1e-6
        assert run.succeeded + run.failed == jobs
        assert run.utilisation <= 1 + 1e-9
        for usage in run.workers.values():
            assert usage.working + usage.loading <= 1 + 1e-9


def test_ways_and_quantiles() -> None:
    assert list(WAYS) == ["corral", "fifo", "round robin"]
    assert quantile([7.0], 0.95) == 7.0
    assert quantile(list(range(1, 101)), 0.95) == 95
