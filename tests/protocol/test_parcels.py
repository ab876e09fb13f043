"""The parcels of the local door: whole again, however a socket cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.protocol import parcels

PARCELS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=60)), max_size=8)


@given(PARCELS, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_parcels_arrive_in_any_pieces(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(parcels.parcel(*one) for one in sent)
    reader, found, turn = parcels.Parcels(60), list[tuple[int, bytes]](), 0
    while data:
        size = cuts[turn % len(cuts)]
        found += reader.take(data[:size])
        data, turn = data[size:], turn + 1
    assert found == sent


def test_too_long_a_parcel_is_refused_by_its_head() -> None:
    with pytest.raises(ValueError, match="61"):
        list(parcels.Parcels(60).take(parcels.HEAD.pack(61, 1)))


def test_a_long_parcel_costs_as_much_as_its_bytes() -> None:
    """A copy of all that came before with each piece would take minutes here."""
    size, piece = 32 << 20, b"x" * 256
    reader = parcels.Parcels(size)
    assert not list(reader.take(parcels.HEAD.pack(size, 7)))
    for _ in range(size // len(piece) - 1):
        assert not list(reader.take(piece))
    assert [(n, len(p)) for n, p in reader.take(piece)] == [(7, size)]
