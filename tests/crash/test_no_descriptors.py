"""A controller that may open nothing more: jobs go on and end, output that cannot be kept is a gap
that readers are told of, and everything is as ever once there are descriptors again."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from tests.api.rest import Rest
from tests.crash.test_stopped import _agent
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController

pytestmark = [pytest.mark.crash, pytest.mark.long]

LOOKS = 50


def talkative(name: str) -> str:
    print(f"{name} says moo", flush=True)
    return name


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """The lowest free number is one that it may not have. What it closes meanwhile, as what it has
    open for a moment, would be free again: so it is looked at until nothing more is closed."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit, quiet = before[0], 0
    while quiet < LOOKS:
        taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        lowest = next(number for number in range(len(taken) + 1) if number not in taken)
        quiet = quiet + 1 if lowest >= limit else 0
        if lowest < limit:
            limit = lowest
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        time.sleep(0.01)
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[LiveController]:
    with LiveController(tmp_path / "home") as started:
        yield started


def test_jobs_that_print_end_and_the_gap_is_marked(controller: LiveController) -> None:
    assert controller.process is not None
    with corral.Client(controller.address, controller.token) as client:
        for _ in range(2):  # the client, too, has its channels open: to submit, and to follow
            assert client.submit(talkative, ("first",)).result(timeout=PATIENCE_S) == "first"
        with no_descriptors(controller.process.pid):
            during = [client.submit(talkative, (f"d{n}",)) for n in range(8)]
            assert [job.result(timeout=PATIENCE_S) for job in during] == [f"d{n}" for n in range(8)]
            first = eventually(lambda: _agent(controller.home), "an agent")
            first.kill()
            eventually(
                lambda: "local_agent_not_started" in controller.log, "it could not be started"
            )
        after = client.submit(talkative, ("after",))
        assert after.result(timeout=PATIENCE_S) == "after", "with an agent that is there again"
        rest = Rest(controller)
        assert "after says moo" in rest("GET", f"/jobs/{after.id}/output").body.decode()
        for number, job in enumerate(during):
            text = rest("GET", f"/jobs/{job.id}/output").body.decode()
            assert ("bytes left out" in text) != (f"d{number} says moo" in text), text
    assert controller.process.poll() is None, "nobody ended it"
    assert "output_not_kept" in controller.log
