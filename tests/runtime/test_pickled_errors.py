"""Exceptions that were made once are the same on the other side."""

from __future__ import annotations

import json
import pickle
import subprocess
from typing import Any

import pytest

from corral.runtime.pickled_errors import dumps


class Keywords(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"{code}: {hint}")
        self.code, self.hint = code, hint


class Prefixed(ValueError):
    def __init__(self, what: str) -> None:
        super().__init__(f"prefixed: {what}")


class Gone(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "gone", path)


class Missing(ImportError):
    def __init__(self) -> None:
        super().__init__("not there", name="missing", path="/p")


class OwnWay(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("text")
        self.pair = (one, two)

    def __reduce__(self) -> Any:
        return OwnWay, self.pair


class Made(Exception):
    def __new__(cls, *, answer: int) -> Made:
        made = super().__new__(cls, answer)
        made.answer = answer  # type: ignore[attr-defined]
        return made

    def __init__(self, *, answer: int) -> None:
        super().__init__(answer)


ERRORS = [
    Keywords(3, hint="again"),
    Prefixed("x"),
    Gone("/x"),
    Missing(),
    OwnWay(1, 2),
    Made(answer=42),
    subprocess.CalledProcessError(3, "cmd", b"out"),
    json.JSONDecodeError("bad", "document", 1),
    UnicodeDecodeError("utf-8", b"ab", 0, 1, "bad"),
    KeyError("k"),
    ExceptionGroup("both", [Keywords(1, hint="h"), Prefixed("y")]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_same_arrives(error: BaseException) -> None:
    again: Any = pickle.loads(dumps(error))
    assert type(again) is type(error)
    assert (str(again), repr(again.args)) == (str(error), repr(error.args))
    assert vars(again) == vars(error)
    for name in ("errno", "filename", "name", "path", "object", "start"):
        assert getattr(again, name, None) == getattr(error, name, None)
