"""The frames of the local door: whole again, however a socket cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.protocol import lines

FRAMES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=60)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_frames_arrive_in_any_pieces(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(lines.framed(*one) for one in sent)
    frames, found, turn = lines.Frames(60), list[tuple[int, bytes]](), 0
    while data:
        size = cuts[turn % len(cuts)]
        found += frames.take(data[:size])
        data, turn = data[size:], turn + 1
    assert found == sent


def test_too_long_a_frame_is_refused_by_its_head() -> None:
    with pytest.raises(ValueError, match="61"):
        list(lines.Frames(60).take(lines.HEAD.pack(61, 1)))


def test_a_long_frame_costs_as_much_as_its_bytes() -> None:
    """A copy of all that came before with each piece would take minutes here."""
    size, piece = 32 << 20, b"x" * 256
    frames = lines.Frames(size)
    assert not list(frames.take(lines.HEAD.pack(size, 7)))
    for _ in range(size // len(piece) - 1):
        assert not list(frames.take(piece))
    assert [(n, len(p)) for n, p in frames.take(piece)] == [(7, size)]
