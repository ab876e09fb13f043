"""Exceptions that pretend, that lie, and that explode when somebody looks at them."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from corral import job
from tests.runtime.harness import Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def explode(*_: object) -> Any:
    raise SystemExit(7)


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def cancel(*_: object) -> Any:
    raise job.Cancelled


class PretendingText(str):
    def encode(self, *_: object) -> bytes:
        return explode()  # type: ignore[no-any-return]


class Metaclass(type):
    __module__ = property(explode)


def fail(attributes: dict[str, Any]) -> None:
    raise type("Exploding", (Exception,), attributes)("boom")


def test_a_code_of_ours_on_an_exception_of_the_user_s_means_nothing(runner: Runner) -> None:
    failure = runner.failure(fail, {"corral_code": "worker_stopping"})
    assert failure["code"] == "exception"
    assert failure["message"] == "boom"


@pytest.mark.parametrize(
    "attributes",
    [
        {"__str__": explode},
        {"__str__": interrupt},
        {"__str__": cancel},
        {"__str__": lambda _: PretendingText("text")},
        {"__class__": property(explode)},
        {"corral_code": property(explode)},
        {"__notes__": property(explode)},
        {"__cause__": property(explode)},
        {"__traceback__": property(explode)},
        {"__getattribute__": interrupt},
        {"__reduce__": explode, "__reduce_ex__": explode},
    ],
    ids=lambda attributes: "-".join(attributes),
)
def test_exceptions_that_explode_still_tell_type_and_place(
    runner: Runner, attributes: dict[str, Any]
) -> None:
    frame = runner.run(fail, attributes)
    failure = frame["failure"]
    assert failure["code"] == "exception"
    assert failure["type"].endswith("Exploding")
    assert "in fail" in failure["traceback"]
    assert "corral/runtime" not in failure["traceback"]
    assert not frame["retire"]
    assert runner.value(abs, -1) == 1


@pytest.mark.parametrize("kind", [PermissionError, ModuleNotFoundError, MemoryError])
def test_so_do_those_that_would_get_a_hint(runner: Runner, kind: type[Exception]) -> None:
    def raise_one() -> None:
        bombs = {"filename": property(explode), "name": property(explode), "__str__": explode}
        raise type("Exploding", (kind,), bombs)

    assert runner.failure(raise_one)["type"].endswith("Exploding")


def test_classes_and_exit_codes_that_explode(runner: Runner) -> None:
    def odd_class() -> None:
        raise Metaclass("Odd", (Exception,), {})("boom")

    def odd_exit() -> None:
        raise type("Exploding", (SystemExit,), {"code": property(explode)})(3)

    def odd_number() -> None:
        raise SystemExit(type("Odd", (int,), {"__and__": explode, "__eq__": explode})(3))

    assert runner.failure(odd_class)["message"] == "boom"
    assert runner.failure(odd_exit)["exit_code"] == 3
    assert runner.failure(odd_number)["exit_code"] == 3
