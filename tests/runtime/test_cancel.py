"""Cancelling: by line and by signal, of functions that ask, that do not, and that resist."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from corral import job
from corral.runtime.channels.configuration import encode
from tests.eventually import eventually
from tests.runtime.harness import Runner, alive

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def sleep_long() -> None:
    time.sleep(60)


def ask_until_told() -> str:
    job.progress(0.5, "asking")
    while not job.cancelled():
        time.sleep(0.002)
    return "ended by itself"


def asking(runner: Runner) -> None:
    """An attempt that has begun to ask: it printed after its first question."""

    def ask() -> str:
        job.cancelled()
        print("asked")
        return ask_until_told()

    runner.start(ask)
    runner.until("output")


def test_a_function_that_never_asks_gets_an_exception(runner: Runner) -> None:
    runner.start(sleep_long)
    runner.until("started")
    runner.cancel()
    frame = runner.end()
    assert frame["failure"]["code"] == "cancelled"
    assert frame["retire"]
    assert runner.gone() == 0


@pytest.mark.forked
def test_cleanup_runs_and_except_exception_does_not_swallow_it(runner: Runner) -> None:
    def tidy() -> None:
        try:
            while True:
                try:
                    print("waiting")
                    time.sleep(60)
                except Exception:
                    print("swallowed")
        finally:
            print("tidied")

    runner.start(tidy)
    runner.until("output")
    runner.cancel()
    runner.terminate()
    assert runner.end()["failure"]["code"] == "cancelled"
    assert runner.output() == b"tidied\n"


@pytest.mark.forked
def test_a_function_that_asks_ends_by_itself_on_a_signal(runner: Runner) -> None:
    asking(runner)
    runner.terminate()
    assert runner.load(runner.end()) == "ended by itself"


@pytest.mark.forked
def test_a_function_that_asks_ends_by_itself_on_a_line(runner: Runner) -> None:
    asking(runner)
    runner.say_cancel()
    frame = runner.end()
    assert runner.load(frame) == "ended by itself"
    assert not frame["retire"]
    assert runner.value(job.cancelled) is False


@pytest.mark.forked
def test_a_cancel_names_its_attempt_where_work_was_sent_ahead(runner: Runner) -> None:
    asking(runner)
    runner.say({"cancel": True, "job": "job-7", "attempt": 7})
    runner.start(ask_until_told)
    runner.say({"cancel": True, "job": "job-1", "attempt": 1})
    assert runner.load(runner.end()) == "ended by itself"
    runner.until("progress")
    runner.say({"cancel": True, "job": "job-2", "attempt": 2})
    assert runner.load(runner.end()) == "ended by itself"


def test_an_exception_after_a_cancel_is_the_cancels(runner: Runner) -> None:
    def give_up() -> None:
        print(job.cancelled())
        ask_until_told()
        raise RuntimeError("stopped halfway")

    runner.start(give_up)
    runner.until("output")
    runner.say_cancel()
    failure = runner.end()["failure"]
    assert failure["code"] == "cancelled"
    assert failure["message"] == "stopped halfway"


def test_a_late_cancel_hits_nobody(runner: Runner) -> None:
    assert runner.value(len, "a") == 1
    runner.say_cancel()
    assert runner.value(job.cancelled) is False


def test_a_cancel_right_behind_its_order_leaves_nothing_to_run(runner: Runner) -> None:
    runner.start(time.sleep, 0.2)
    runner.start(sleep_long)
    runner.say({"cancel": True, "job": "job-2", "attempt": 2})
    assert runner.end()["frame"] == "result"
    assert runner.end()["failure"]["code"] == "cancelled"
    assert not runner.kinds("started")


@pytest.mark.forked
def test_threads_may_ask_too_and_take_nothing_from_the_next_attempt(runner: Runner) -> None:
    def ask_from_threads() -> int:
        def ask() -> None:
            while True:
                job.cancelled()

        for _ in range(3):
            threading.Thread(target=ask, daemon=True).start()
        return threading.active_count()

    assert runner.value(ask_from_threads) == 4
    for number in range(30):
        assert runner.value(abs, -number) == number


def test_a_coroutine_is_cancelled_as_asyncio_does_it(runner: Runner) -> None:
    async def wait() -> None:
        print("waiting")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("told")
            raise

    runner.start(wait)
    runner.until("output")
    runner.cancel()
    assert runner.end()["failure"]["code"] == "cancelled"
    assert runner.output() == b"told\n"


def test_a_job_with_its_own_signal_handling_dies_of_it_as_cancelled(runner: Runner) -> None:
    def own_way() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        print("ready")
        time.sleep(60)

    runner.start(own_way)
    runner.until("output")
    runner.cancel()
    assert runner.end()["failure"]["code"] == "cancelled"


def end_itself(whole_group: bool) -> None:
    if whole_group:
        os.killpg(0, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def end_itself_plainly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_itself(True)


async def end_itself_in_a_task() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)


@pytest.mark.forked
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (end_itself, (False,)),
        (end_itself, (True,)),
        (end_itself_plainly, ()),
        (end_itself_in_a_task, ()),
    ],
)
def test_a_signal_that_nobody_of_ours_sent_is_no_cancel(
    runner: Runner, function: Callable[..., object], args: tuple[object, ...]
) -> None:
    frame = runner.run(function, *args)
    assert frame["failure"]["code"] == "killed_by_signal"
    assert frame["failure"]["exit_code"] == -signal.SIGTERM
    assert "SIGTERM. Corral did not send it" in frame["failure"]["message"]
    assert frame["retire"]


def test_cancelled_raised_unasked_is_an_exception_like_any_other(runner: Runner) -> None:
    def give_up() -> None:
        raise job.Cancelled("no wish to go on")

    frame = runner.run(give_up)
    assert frame["failure"]["code"] == "exception"
    assert frame["failure"]["type"] == "corral.job.Cancelled"
    assert frame["failure"]["message"] == "no wish to go on"
    assert not frame["retire"]


def test_a_cancel_for_another_attempt_makes_none_of_this_one(runner: Runner) -> None:
    runner.start(end_itself, False)
    runner.say({"cancel": True, "job": "job-7", "attempt": 7})
    assert runner.end()["failure"]["code"] == "killed_by_signal"


def test_forked_workers_end_plainly_on_terminate(runner: Runner) -> None:
    def pool() -> int | None:
        import multiprocessing

        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        worker.terminate()
        worker.join()
        return worker.exitcode

    assert runner.value(pool) == -signal.SIGTERM
    assert runner.output("stderr") == b""


def start_stubborn_tree(runner: Runner, note: Path) -> list[int]:
    """A job that ignores signals, with a child and a daemon that do the same; all their pids."""

    def stubborn(path: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for detach in (False, True):
            if os.fork() == 0:
                if detach:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                with open(path, "a") as file:
                    file.write(f"{os.getpid()}\n")
                time.sleep(60)
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            pass

    runner.start(stubborn, str(note))
    runner.until("started")
    eventually(lambda: note.exists() and note.read_text().count("\n") == 3, "three processes")
    return [int(line) for line in note.read_text().split()]


def test_when_the_agent_is_gone_the_whole_tree_goes(runner: Runner) -> None:
    pids = start_stubborn_tree(runner, runner.folder / "pids")
    assert all(map(alive, pids))
    runner.hang_up()
    runner.gone()
    eventually(lambda: not any(map(alive, pids)), "the tree to end")


def test_a_pipe_that_closes_says_the_same_as_a_socket(kit: Path) -> None:
    orders, hand = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runner = str(kit / "corral" / "runtime" / "runner.py")
    with (
        orders,
        hand,
        subprocess.Popen(
            [sys.executable, "-I", runner, str(hand.fileno())],
            pass_fds=(hand.fileno(),),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode({"python": sys.executable}))
        assert b'"ready"' in process.stdout.readline()
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_killed_supervisor_takes_the_job_process_along(runner: Runner) -> None:
    def tell_and_wait() -> None:
        print(os.getpid())
        time.sleep(60)

    runner.start(tell_and_wait)
    pid = int(runner.until("output")["text"])
    runner.process.kill()
    eventually(lambda: not alive(pid), "the job process to end")
