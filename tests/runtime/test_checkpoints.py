"""A checkpoint does not hold its job: it is taken, and sent while the job goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import cloudpickle
import pytest

from corral import job
from tests.eventually import eventually
from tests.runtime.harness import Controller, Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def until_there(name: str) -> None:
    while not (job.output_dir() / name).exists():
        time.sleep(0.01)


def kept(controller: Controller) -> Any:
    assert controller.checkpoint is not None
    return cloudpickle.loads(controller.checkpoint)


def came(controller: Controller) -> int:
    return sum(one.startswith("PUT") and one.endswith("/checkpoint") for one in controller.requests)


def test_a_job_goes_on_while_its_checkpoint_is_sent(runner: Runner, controller: Controller) -> None:
    def train() -> str:
        weights = [1]
        job.checkpoint(weights)
        weights.append(2)  # which is no part of what was taken
        job.progress(None, "on its way")
        return "done"

    controller.takes_checkpoints.clear()
    runner.start(train)
    assert runner.until("progress")["message"] == "on its way"
    assert controller.checkpoint is None
    controller.takes_checkpoints.set()
    assert runner.load(runner.end()) == "done"
    assert kept(controller) == [1]


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_its_end_waits_for_the_last_one_and_for_none_that_a_newer_one_replaced(
    runner: Runner, controller: Controller, how: str
) -> None:
    def train(how: str) -> str:
        job.checkpoint(0)
        until_there("go on")
        for epoch in range(1, 5):
            job.checkpoint(epoch)
        job.progress(None, "all taken")
        if how == "raises":
            raise RuntimeError("half way")
        return "done"

    controller.takes_checkpoints.clear()
    folder = runner.start(train, how)
    eventually(lambda: came(controller) == 1, "the first is on its way")
    (folder / "output" / "go on").touch()
    runner.until("progress")
    controller.takes_checkpoints.set()
    assert runner.end()["frame"] == ("error" if how == "raises" else "result")
    assert len(runner.kinds("checkpoint")) == 2
    assert (kept(controller), came(controller)) == (4, 2)


def test_the_newest_is_restored_and_the_process_is_used_again(
    runner: Runner, controller: Controller
) -> None:
    def train() -> tuple[int, int, list[str]]:
        job.checkpoint(1)
        job.checkpoint(2)
        found = job.restore()
        return os.getpid(), found, [one.name for one in threading.enumerate()]

    first, second = runner.value(train), runner.value(train)
    assert first == second
    assert first[1] == 2
    assert "corral-checkpoint" not in first[2]


def test_what_is_refused_is_told_at_once_and_raised_by_the_next(
    runner: Runner, controller: Controller
) -> None:
    def train() -> str:
        job.checkpoint(1)
        job.restore()
        try:
            job.checkpoint(2)
        except Exception as error:
            refused = str(error)
        job.checkpoint(3)
        return refused

    controller.refuse = [413]
    assert "refused checkpoint: 413" in runner.value(train)
    assert b"corral: a checkpoint was not kept, the one before stays" in runner.output("stderr")
    assert kept(controller) == 3


def test_one_that_cannot_be_sent_does_not_fail_a_job_that_is_done(
    runner: Runner, controller: Controller
) -> None:
    def train() -> str:
        job.checkpoint(1)
        return "done"

    controller.refuse = [413]
    assert runner.value(train) == "done"
    assert b"a checkpoint was not kept" in runner.output("stderr")


def test_what_cannot_be_pickled_is_raised_where_it_is_given(
    runner: Runner, controller: Controller
) -> None:
    def train() -> None:
        job.checkpoint("good")
        job.checkpoint(threading.Lock())

    assert runner.failure(train)["type"] == "TypeError"
    assert kept(controller) == "good"


def test_the_thread_loads_no_module(runner: Runner, controller: Controller) -> None:
    def train() -> set[str]:
        before: set[str] = set()

        job._sender().take(1, lambda *_: before.update(sys.modules))
        job._sender().finish()
        return set(sys.modules) - before

    assert runner.value(train) == set()


@pytest.mark.forked
def test_a_forked_child_waits_since_nobody_would_wait_for_it(
    runner: Runner, controller: Controller
) -> None:
    def train() -> int:
        job.checkpoint("of its parent")
        child = os.fork()
        if child == 0:
            try:
                job.checkpoint("of the child")
            finally:
                os._exit(0)
        return os.waitpid(child, 0)[1]

    assert runner.value(train) == 0
    assert kept(controller) in ("of its parent", "of the child")
    assert came(controller) == 2


def test_a_script_ends_when_its_last_checkpoint_is_sent(
    runner: Runner, controller: Controller
) -> None:
    source = "from corral import job\njob.checkpoint('last')\nprint('on its way', flush=True)\n"
    controller.takes_checkpoints.clear()
    runner.start_script({"main.py": source})
    assert runner.until("output")["text"].strip() == "on its way"
    assert controller.checkpoint is None
    controller.takes_checkpoints.set()
    assert runner.end()["frame"] == "result"
    assert kept(controller) == "last"
