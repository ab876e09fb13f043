"""A canvas of RGB bytes, drawn on with whole numbers alone: the same bytes on every machine."""

from __future__ import annotations

from math import isqrt

Colour = tuple[int, int, int]
MASK = (1 << 64) - 1


class Dice:
    """Whole numbers from a seed, the same everywhere (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & MASK

    def below(self, bound: int) -> int:
        self._state = state = (self._state + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        return (state ^ (state >> 31)) % bound

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + self.below(max(high - low, 0) + 1)


def mixed(one: Colour, other: Colour, part: int, whole: int) -> Colour:
    """`part` of `whole` of the other one."""
    left = whole - part
    return (
        (one[0] * left + other[0] * part) // whole,
        (one[1] * left + other[1] * part) // whole,
        (one[2] * left + other[2] * part) // whole,
    )


class Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.data = bytearray(width * height * 3)

    def span(self, y: int, left: int, right: int, colour: Colour) -> None:
        """One row, from `left` to just before `right`; what lies outside is left out."""
        left, right = max(left, 0), min(right, self.width)
        if left < right and 0 <= y < self.height:
            start = (y * self.width + left) * 3
            self.data[start : start + (right - left) * 3] = bytes(colour) * (right - left)

    def box(self, left: int, top: int, right: int, bottom: int, colour: Colour) -> None:
        for y in range(max(top, 0), min(bottom, self.height)):
            self.span(y, left, right, colour)

    def gradient(self, top: Colour, bottom: Colour) -> None:
        whole = max(self.height - 1, 1)
        rows = (bytes(mixed(top, bottom, y, whole)) * self.width for y in range(self.height))
        self.data[:] = b"".join(rows)

    def disc(self, x: int, y: int, radius: int, colour: Colour, hole: int = 0) -> None:
        for row in range(-radius, radius + 1):
            half = isqrt(radius * radius - row * row)
            if hole > abs(row):
                gap = isqrt(hole * hole - row * row)
                self.span(y + row, x - half, x - gap, colour)
                self.span(y + row, x + gap, x + half + 1, colour)
            else:
                self.span(y + row, x - half, x + half + 1, colour)

    def peak(self, x: int, top: int, bottom: int, half: int, light: Colour, dark: Colour) -> None:
        """A triangle that stands on its base, lit from the left."""
        tall = max(bottom - top, 1)
        for y in range(max(top, 0), min(bottom, self.height)):
            reach = half * (y - top) // tall
            self.span(y, x - reach, x, light)
            self.span(y, x, x + reach + 1, dark)

    def tower(self, left: int, top: int, wide: int, colour: Colour, window: Colour) -> None:
        """Down to the lower edge, with battlements and lit windows."""
        self.box(left, top, left + wide, self.height, colour)
        tooth = max(wide // 5, 1)
        for tip in range(left, left + wide, tooth * 2):
            self.box(tip, top - tooth, tip + tooth, top, colour)
        pane = max(wide // 6, 1)
        for y in range(top + pane * 2, self.height - pane, pane * 4):
            for x in (left + wide // 4, left + wide * 3 // 4):
                self.box(x - pane // 2, y, x - pane // 2 + pane, y + pane * 2, window)


def enlarged(data: bytes, width: int, height: int, wide: int, tall: int) -> bytes:
    """RGB bytes at another size, each pixel the nearest of those it was made of."""
    columns = [0] * width
    for x in range(wide):
        columns[x * width // wide] += 1
    lines = []
    row, made = -1, b""
    for y in range(tall):
        if y * height // tall != row:
            row = y * height // tall
            start = row * width * 3
            made = b"".join(
                [data[start + x * 3 : start + x * 3 + 3] * n for x, n in enumerate(columns)]
            )
        lines.append(made)
    return b"".join(lines)
