"""Functions in all the forms people write them, imported by the tests as a user's module."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

OFFSET = 100


def add_offset(x: int) -> int:
    return x + OFFSET + _private(x)


def _private(x: int) -> int:
    return x * 1000


def twice(fn: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(fn)
    def wrapper(*args: int, **kwargs: int) -> int:
        return 2 * fn(*args, **kwargs)

    return wrapper


@twice
def decorated(x: int) -> int:
    return x + 1


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    def count(self, by: int) -> int:
        return self.start + by

    @classmethod
    def named(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


class OwnError(Exception):
    def __init__(self, code: int, hint: str) -> None:
        super().__init__(code, hint)
        self.code, self.hint = code, hint


def process() -> int:
    return os.getpid() + _private(0)


def fails(x: int) -> int:
    raise OwnError(x, "try again")
