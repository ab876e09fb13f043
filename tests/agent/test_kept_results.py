"""Results that end while nobody listens outlive the agent."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from zlib import crc32

from structlog.testing import capture_logs

from corral.agent.outbox import KEPT, KeptResults
from corral.core.job import Failure
from corral.protocol import messages as wire
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController
from tests.agent.test_connection import wait_for
from tests.agent.test_process import Spawn, spawn
from tests.eventually import eventually_async

__all__ = ["spawn"]


def completed(job: str) -> wire.JobCompleted:
    return wire.JobCompleted(job, 1, 5.0, 1.0, "digest")


def failed(job: str) -> wire.JobFailed:
    return wire.JobFailed(job, 1, 5.0, 1.0, "digest", Failure(code="exception", message="ö\n"))


def test_what_was_added_is_found_again(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "kept", "w1")
    assert kept.read() == []
    assert kept.add([completed("a"), failed("b")]) == 2
    assert kept.add([completed("c")]) == 1
    assert KeptResults(tmp_path / "kept", "w1").read() == [
        completed("a"),
        failed("b"),
        completed("c"),
    ]
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0
    kept.clear()
    assert kept.read() == []


def test_a_torn_line_takes_no_other_along(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = KeptResults(path, "w1")
    kept.add([completed("a"), completed("b")])
    path.write_bytes(path.read_bytes()[:-9])
    assert kept.read() == [completed("a")]
    kept.add([completed("c")])
    assert kept.read() == [completed("a"), completed("c")]
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"x"'))
    assert kept.read() == [completed("c")], "a changed one is not believed"


def test_lines_that_break_readers_take_no_other_along(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = KeptResults(path, "w1")
    kept.add([completed("a")])
    deep = b'{"type":"JobCompleted","odd":' + b"[" * 100_000
    odd = b'{"type":"JobCompleted","job":"\xff"}'
    path.write_bytes(
        path.read_bytes() + b"".join(b"%08x %b\n" % (crc32(b), b) for b in (deep, odd))
    )
    kept.add([completed("b")])
    assert kept.read() == [completed("a"), completed("b")]


def test_it_is_bounded(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "kept", "w1", limit=1000)
    added = kept.add([completed(f"job{n}") for n in range(100)])
    assert 0 < added < 100
    with (tmp_path / "kept").open("ab") as file:  # somebody else's
        file.truncate(1 << 33)
    with capture_logs() as told:
        assert len(kept.read()) == added
    assert [one["event"] for one in told] == ["kept_results_too_large"]
    assert len(kept.read()) == added
    assert kept.add([completed(f"more{n}") for n in range(100)]) == 0


def test_nothing_of_another_worker_is_said(tmp_path: Path) -> None:
    KeptResults(tmp_path / "kept", "w1").add([completed("a")])
    other = KeptResults(tmp_path / "kept", "w2")
    assert other.read() == []
    assert (tmp_path / "kept").exists(), "whoever reads deletes nothing"
    other.add([completed("b")])
    assert other.read() == [completed("b")]


async def test_a_killed_agent_delivers_what_ended_while_the_controller_was_away(
    controller: FakeController, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "corral.yaml").write_text(f"worker: {{read_paths: [{tmp_path}]}}\n")
    process = await spawn(embedded=False)
    await controller.expect(wire.WorkerHeartbeat)
    job = controller.job(wait_for, str(tmp_path / "go"))
    await controller.send(job)
    await controller.expect(wire.JobStarted, job.job)
    await controller.stop()
    (tmp_path / "go").touch()
    kept = KeptResults(tmp_path / "worker" / KEPT, "w1")
    await eventually_async(kept.read, "a kept result")
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await controller.listen()
    controller.write_address(tmp_path)
    await spawn(embedded=False)
    register = await controller.expect(wire.WorkerRegister, count=2)
    assert register.attempts == ((job.job, 1),)
    assert await controller.value(job.job) == "seen"
    await controller.expect(wire.WorkerHeartbeat, where=lambda _: len(controller.sockets) == 2)
    await eventually_async(lambda: not (tmp_path / "worker" / KEPT).exists(), "it is kept no more")


async def test_nothing_is_written_while_the_controller_listens(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start()
    for _ in range(20):
        job = controller.job(os.getpid)
        await controller.send(job)
        await controller.completed(job.job)
        assert not (tmp_path / "worker" / KEPT).exists()


async def test_what_is_not_confirmed_for_two_beats_is_kept(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start()
    controller.receives = False
    job = controller.job(os.getpid)
    await controller.send(job)
    await controller.completed(job.job)
    await eventually_async((tmp_path / "worker" / KEPT).exists, "a kept result")
