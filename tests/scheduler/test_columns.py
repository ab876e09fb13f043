"""Many workers at once and one by one: two ways to one plan."""

from __future__ import annotations

from hypothesis import given, settings

from corral.scheduler.columns import Columns
from corral.scheduler.plan import Rooms, decide_among
from corral.scheduler.sets import reaching
from corral.scheduler.snapshot import Snapshot
from tests.scheduler.strategies import snapshots


@given(snapshots(most=14, policies=True))
@settings(max_examples=100, deadline=None)
def test_both_ways_lead_to_the_same_plan(world: Snapshot) -> None:
    assert decide_among(Columns(world), world) == decide_among(Rooms(world), world)


@given(snapshots(most=14, policies=True, models=True))
@settings(max_examples=80, deadline=None)
def test_so_they_do_where_models_are_wanted(world: Snapshot) -> None:
    assert decide_among(Columns(world), world) == decide_among(Rooms(world), world)


def test_more_marks_than_a_byte_has_levels() -> None:
    values = [float(n) for n in range(600)]
    found = reaching(values, values)
    assert [found[value].bit_count() for value in values] == list(range(600, 0, -1))
    assert found[599.0] == 1 << 599
    beyond = reaching(values, values, beyond=True)
    assert [beyond[value].bit_count() for value in values] == list(range(599, -1, -1))
