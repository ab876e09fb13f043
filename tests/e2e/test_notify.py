"""Webhooks of a real controller: through kill -9, a lost agent, and an ordinary stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral.core.errors import InvalidJob, JobFailed
from tests.controller.receiver import Receiver
from tests.live import LiveController

KEY = "key-that-signs-what-is-sent"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def fails() -> None:
    raise RuntimeError("no such luck")


def started(tmp_path: Path, receiver: Receiver, more: str = "") -> LiveController:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(
        "notify_settle_s: 0.5\n"
        "shutdown_grace_s: 1\nnotify_secret: HOOK_KEY\nnotify:\n"
        f"  - {{url: '{receiver.url}all', secret: HOOK_KEY}}\n{more}"
    )
    return LiveController(home)


def test_what_was_not_told_before_a_crash_is_told_after_it(
    tmp_path: Path, receiver: Receiver
) -> None:
    live = started(tmp_path, receiver)
    live.start()
    receiver.statuses = [503] * 100_000
    with corral.Client(live.address, live.token) as client:
        client.secrets.set("HOOK_KEY", KEY)
        for error in client.map(lambda _: 1 / 0, range(3), return_exceptions=True):
            assert isinstance(error, JobFailed)
        own = f"{receiver.url}own"
        assert list(client.map(abs, range(3), batch="mine", notify=own)) == [0, 1, 2]
        with pytest.raises(InvalidJob, match="notify"):
            client.submit(abs, (1,), notify="ftp://nowhere/")
    tried = receiver.until(1)[0]
    live.kill()
    receiver.statuses = []
    before = len(receiver.received)
    live.start()
    done = receiver.until(3, "batch_done", status=204)
    receiver.until(3, "job_failed", status=204)
    live.stop()
    told = [one for one in receiver.received[before:] if one.status == 204]
    assert all(one.signed_by(KEY) for one in told)
    failed = [one for one in told if one.told["event"] == "job_failed"]
    assert len({one.told["job"]["job_id"] for one in failed}) == len(failed) == 3
    assert tried.delivery in {one.delivery for one in failed}
    # The map's batch to everybody's webhook; the other one also to its own.
    names = sorted(one.told["batch"]["name"][:4] for one in done)
    assert names == ["map-", "mine", "mine"]
    assert next(one for one in done if "mine" in one.told["message"]).told["batch"]["counts"] == {
        "succeeded": 3
    }


def test_a_lost_worker_is_told_and_a_stop_is_not(tmp_path: Path, receiver: Receiver) -> None:
    with started(tmp_path, receiver, "grace_s: 0.2\n") as live:
        with corral.Client(live.address, live.token) as client:
            client.secrets.set("HOOK_KEY", KEY)
            assert client.run(abs, (-1,)) == 1
            worker = client.workers()[0]
        assert live.process is not None
        (agent,) = psutil.Process(live.process.pid).children()
        os.kill(agent.pid, signal.SIGKILL)
        (got,) = receiver.until(1, "worker_lost")
        assert got.told["worker"]["id"] == worker.id
        assert worker.name in got.told["message"]
        with corral.Client(live.address, live.token) as client:
            assert client.run(abs, (-2,)) == 2
    assert len(receiver.until(1, "worker_lost")) == 1
