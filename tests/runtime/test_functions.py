"""Function calls: what runs, what comes back, and how each kind of failure reads."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from corral.runtime.functions import INLINE_LIMIT
from tests.runtime.harness import Controller, Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FACTOR = 3


def triple(number: int) -> int:
    return FACTOR * number


def shouting(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> str:
        return function(*args).upper()

    return wrapped


@shouting
def greet(name: str) -> str:
    return f"hello {name}"


class Counter:
    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, number: int) -> int:
        return self.start + number

    @classmethod
    def named(cls) -> str:
        return cls.__name__


def make_closure(bound: list[int]) -> Callable[[], int]:
    def inner() -> int:
        def deeper() -> int:
            return sum(bound)

        return deeper()

    return inner


async def slowly(value: str) -> str:
    await asyncio.sleep(0)
    return value * 2


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (triple, (14,), 42),
        (lambda: "from a lambda", (), "from a lambda"),
        (make_closure([1, 2, 3]), (), 6),
        (greet, ("world",), "HELLO WORLD"),
        (Counter(40).plus, (2,), 42),
        (Counter.named, (), "Counter"),
        (functools.partial(triple, 5), (), 15),
        (slowly, ("ab",), "abab"),
        (len, ([1, 2],), 2),
    ],
    ids=lambda value: getattr(value, "__qualname__", "") if callable(value) else "",
)
def test_every_kind_of_function_runs(
    runner: Runner, function: Callable[..., Any], args: tuple[Any, ...], expected: object
) -> None:
    assert runner.value(function, *args) == expected
    assert [frame["frame"] for frame in runner.frames] == ["started", "result"]


def test_keyword_arguments_and_rich_results(runner: Runner) -> None:
    def build(a: int, *, b: int) -> Any:
        return {"sum": a + b, "next": lambda: a * b}

    value = runner.value(build, 6, b=7)
    assert value["sum"] == 13
    assert value["next"]() == 42


def test_one_process_serves_many_calls_and_unpickles_a_function_once(runner: Runner) -> None:
    def count(seen: list[int] = []) -> tuple[int, int]:  # noqa: B006
        seen.append(1)
        return os.getpid(), len(seen)

    answers = [runner.value(count) for _ in range(3)]
    assert len({pid for pid, _ in answers}) == 1
    assert [number for _, number in answers] == [1, 2, 3]


def test_a_function_of_any_size_is_fetched_once(runner: Runner, controller: Controller) -> None:
    data = os.urandom(8_000_000)
    first, second = (lambda: len(data)), (lambda: data[:3])
    for _ in range(3):
        assert runner.value(first) == 8_000_000
        assert runner.value(second) == data[:3]
    assert len(controller.requests) == 2


def test_what_is_kept_leaves_the_memory_to_the_jobs(
    start_runner: Callable[..., Runner], controller: Controller
) -> None:
    runner = start_runner(limits={"memory_bytes": 400_000_000, "cpus": None})
    for _ in range(2):
        data = os.urandom(120_000_000)  # More than the share that may be kept beside others.
        for _ in range(2):
            assert runner.value(lambda data=data: len(data)) == 120_000_000
    assert len(controller.requests) == 2
    assert runner.value(lambda: len(bytes(250_000_000))) == 250_000_000


@pytest.mark.forked
def test_calls_sent_ahead_run_in_order(runner: Runner) -> None:
    for number in range(20):
        runner.start(triple, number)
    assert [runner.load(runner.end()) for _ in range(20)] == [3 * number for number in range(20)]


def test_large_arguments_and_results_travel_over_http(
    runner: Runner, controller: Controller
) -> None:
    data = os.urandom(3_000_000)
    assert runner.value(lambda part: part + b"!", data) == data + b"!"
    assert "data" not in runner.frames[-1]["result"]
    assert any("/packages/" in request for request in controller.requests)


def test_results_up_to_the_limit_ride_inline(runner: Runner) -> None:
    overhead = len(pickle.dumps(b"x" * 1000, 5)) - 1000
    frame = runner.run(lambda size: bytes(size), INLINE_LIMIT - overhead)
    assert "data" in frame["result"]
    assert frame["result"]["size"] == INLINE_LIMIT
    assert "data" not in runner.run(lambda size: bytes(size), INLINE_LIMIT - overhead + 1)["result"]


class Odd(ValueError):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail_deep(number: int) -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError(f"outer {number}") from error


def test_an_exception_keeps_type_message_chain_and_itself(runner: Runner) -> None:
    failure = runner.failure(fail_deep, 7)
    assert failure["code"] == "exception"
    assert failure["type"] == "ValueError"
    assert failure["message"] == "outer 7"
    error = pickle.loads(base64.b64decode(failure["pickled"]))
    assert isinstance(error, ValueError)
    assert error.args == ("outer 7",)
    text = failure["traceback"]
    assert "KeyError: 'inner'" in text
    assert "direct cause" in text
    assert "in fail_deep" in text
    assert text.rstrip().endswith("ValueError: outer 7")


def test_a_traceback_has_no_frames_of_corral(runner: Runner) -> None:
    def call() -> None:
        from corral import job

        job.artifact("no such file")

    failure = runner.failure(call)
    assert failure["type"] == "FileNotFoundError"
    shown = [line for line in failure["traceback"].splitlines() if line.startswith("  File")]
    assert len(shown) == 1
    assert shown[0].endswith("in call")


def test_exceptions_that_cannot_be_pickled_still_tell_their_story(runner: Runner) -> None:
    def with_a_lock() -> None:
        error = RuntimeError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    def odd() -> None:
        raise Odd(1, 2)

    def huge() -> None:
        raise ValueError("x" * 200_000)

    def broken() -> None:
        class Broken(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Broken

    failure = runner.failure(with_a_lock)
    assert failure["message"] == "holds a lock"
    assert "pickled" not in failure
    failure = runner.failure(odd)
    assert failure["message"] == "1 and 2"
    assert failure["type"].endswith("test_functions.Odd")
    assert isinstance(pickle.loads(base64.b64decode(failure["pickled"])), Odd)
    failure = runner.failure(huge)
    assert "pickled" not in failure
    assert "left out" in failure["message"]
    assert len(failure["message"]) < 20_000
    assert "cannot be shown" in runner.failure(broken)["message"]
    assert "\ufffd" in runner.failure(lambda: int("\udc80"))["message"] + "\ufffd"


def test_running_out_of_memory_is_known_by_type(runner: Runner) -> None:
    def torch_like() -> None:
        error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch.cuda"})
        raise error("CUDA out of memory. Tried to allocate 2.00 GiB")

    def plain() -> None:
        raise MemoryError

    frame = runner.run(torch_like)
    assert frame["failure"]["code"] == "out_of_memory"
    assert frame["failure"]["type"] == "torch.cuda.OutOfMemoryError"
    assert frame["retire"]
    assert runner.gone() == 0


def test_a_gpu_that_gives_errors_only_retires_the_process(runner: Runner) -> None:
    def assert_on_device() -> None:
        error = type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})
        raise error("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'")

    frame = runner.run(assert_on_device)
    assert frame["failure"]["code"] == "exception"
    assert frame["retire"]
    assert runner.gone() == 0


@pytest.mark.forked
def test_a_memory_limit_ends_in_out_of_memory(start_runner: Callable[..., Runner]) -> None:
    limits = {"memory_bytes": 1 << 28, "cpus": None}
    runner = start_runner(limits=limits)
    assert runner.ready["enforced"]["memory"] == "rlimit_data"
    assert runner.value(lambda: len(bytearray(10_000_000))) == 10_000_000
    frame = runner.run(lambda: len(bytearray(1_000_000_000)))
    assert frame["failure"]["code"] == "out_of_memory"
    assert frame["failure"]["type"] == "MemoryError"
    assert frame["failure"]["message"].startswith(
        "The job ran out of memory: it had memory_gb=0.25."
    )


def test_memory_without_a_limit_and_with_words_of_its_own(
    start_runner: Callable[..., Runner],
) -> None:
    def wordy() -> None:
        raise MemoryError("Unable to allocate 8 GiB")

    message = start_runner().failure(wordy)["message"]
    assert message.startswith("Unable to allocate 8 GiB. The job ran out of memory")
    assert "memory_gb" not in message


@pytest.mark.parametrize(
    ("argument", "code", "exit_code"),
    [
        (0, "no_result", None),
        (None, "no_result", None),
        (3, "exit_code", 3),
        ("bad", "exit_code", 1),
    ],
)
def test_sys_exit(runner: Runner, argument: Any, code: str, exit_code: int | None) -> None:
    failure = runner.failure(lambda: sys.exit(argument))
    assert failure["code"] == code
    assert failure.get("exit_code") == exit_code
    assert runner.value(triple, 1) == 3


@pytest.mark.parametrize(
    ("end", "code", "exit_code"),
    [
        (lambda: os._exit(0), "no_result", None),
        (lambda: os._exit(5), "exit_code", 5),
        (lambda: os.kill(os.getpid(), 9), "process_died", -9),
        (lambda: os.abort(), "killed_by_signal", -6),
    ],
    ids=["exit0", "exit5", "kill", "abort"],
)
def test_a_process_that_dies_is_reported_with_its_output(
    runner: Runner, end: Callable[[], None], code: str, exit_code: int | None
) -> None:
    def last_words() -> None:
        os.write(1, b"last words")
        end()

    frame = runner.run(last_words)
    assert frame["frame"] == "error"
    assert frame["failure"]["code"] == code
    assert frame["failure"].get("exit_code") == exit_code
    assert frame["retire"]
    assert runner.output() == b"last words"
    runner.gone()


def test_an_unpicklable_result_names_the_reason(runner: Runner) -> None:
    failure = runner.failure(lambda: threading.Lock())
    assert failure["code"] == "unpicklable_result"
    assert "lock" in failure["message"]
    assert runner.value(triple, 2) == 6


def test_a_missing_module_suggests_requirements(runner: Runner) -> None:
    missing = b"cnot_installed_here.part\nf\n."
    work = {
        "type": "function",
        "function": runner.blob(missing),
        "arguments": runner.blob(pickle.dumps(((), {}))),
    }
    runner.start_work(work)
    failure = runner.end()["failure"]
    assert failure["code"] == "exception"
    assert failure["type"] == "ModuleNotFoundError"
    assert "requirements=[…] (--with not_installed_here), or" in failure["message"]
    function, work["function"] = work["function"], runner.blob(pickle.dumps(len))
    runner.start_work({**work, "arguments": function})
    assert "The arguments of the job need the module" in runner.end()["failure"]["message"]


def test_so_does_an_import_in_the_function_s_body(runner: Runner) -> None:
    def outer() -> None:
        import not_installed_here.part  # type: ignore[import-not-found]  # noqa: F401

    def inner() -> None:
        import json.no_such_part  # type: ignore[import-not-found]  # noqa: F401

    failure = runner.failure(outer)
    assert failure["type"] == "ModuleNotFoundError"
    assert failure["message"].startswith("No module named 'not_installed_here'. Add not_installed_")
    # No requirement would help against this one.
    assert runner.failure(inner)["message"].startswith("No module named 'json.no_such_part'")
    assert "requirements" not in runner.failure(inner)["message"]


def test_a_package_is_named_as_an_installer_does(runner: Runner) -> None:
    def look() -> None:
        import sklearn.svm  # type: ignore[import-not-found]  # noqa: F401

    assert "Add scikit-learn to requirements" in runner.failure(look)["message"]


def test_what_another_version_lacks_says_which_version_is_there(runner: Runner) -> None:
    from importlib import metadata

    def newer() -> None:
        from cloudpickle import made_next_year  # noqa: F401

    there = f"environment has cloudpickle {metadata.version('cloudpickle')}: name the version"
    assert there in runner.failure(newer)["message"]
    work = {
        "type": "function",
        "function": runner.blob(b"ccloudpickle\nmade_next_year\n."),
        "arguments": runner.blob(pickle.dumps(((), {}))),
    }
    runner.start_work(work)
    assert there in runner.end()["failure"]["message"]


def test_a_client_inside_a_job_says_that_jobs_cannot_submit(runner: Runner) -> None:
    def submit() -> None:
        import corral.no_such_part  # type: ignore[import-not-found]  # noqa: F401

    assert "Jobs cannot submit jobs" in runner.failure(submit)["message"]


def test_damaged_and_wrong_bytes(runner: Runner, controller: Controller) -> None:
    arguments = runner.blob(pickle.dumps(((), {})))
    runner.start_work(
        {"type": "function", "function": runner.blob(b"\x80"), "arguments": arguments}
    )
    assert runner.end()["failure"]["code"] == "bad_package"

    asked = hashlib.sha256(b"what was asked for").hexdigest()
    controller.packages[asked] = b"something else"
    function = {"sha256": asked, "size": 18}
    runner.start_work({"type": "function", "function": function, "arguments": arguments})
    failure = runner.end()["failure"]
    assert failure["code"] == "transfer_failed"
    assert asked in failure["message"]

    inline = {"sha256": asked, "size": 4, "data": base64.b64encode(b"else").decode()}
    runner.start_work({"type": "function", "function": inline, "arguments": arguments})
    assert runner.end()["failure"]["code"] == "transfer_failed"
    assert not runner.kinds("started")


def test_a_forked_child_that_returns_does_not_report(runner: Runner) -> None:
    def fork_and_return() -> str:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return "parent"
        return "child"

    frame = runner.run(fork_and_return)
    assert runner.load(frame) == "parent"
    assert runner.value(triple, 1) == 3
