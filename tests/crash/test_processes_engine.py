"""kill -9 of a controller whose jobs are plain processes: before a start, at it, while they run,
and between an end and its receipt. Nothing is lost or done twice, and no worker is blamed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral.core.events import AttemptPlaced, JobRequeued, JobSucceeded
from tests import live
from tests.crash.books import end_of, stories
from tests.crash.conftest import same_port
from tests.eventually import PATIENCE_S, eventually
from tests.live import STOP_S, LiveController

pytestmark = pytest.mark.crash

DYING_UP = """#!{python}
import os, signal, time
from pathlib import Path
from corral.cli.main import main
from corral.engines.posted import Mailbox
from corral.engines.processes import ProcessesEngine
from corral.protocol.attempt_messages import EndedMessage

spawn, post = ProcessesEngine._spawn, Mailbox.post

def die(where):
    if where == {where!r} and not Path({marker!r}).exists():
        Path({marker!r}).touch()
        os.kill(os.getpid(), signal.SIGKILL)

def dying_spawn(self, *given):
    die("before the start")
    started = spawn(self, *given)
    die("after the start")
    return started

async def dying_post(self, job, attempt, worker, batch):
    answer = await post(self, job, attempt, worker, batch)
    if any(isinstance(one, EndedMessage) for one in batch.messages):
        die("before the receipt")
    return answer

ProcessesEngine._spawn, Mailbox.post = dying_spawn, dying_post
main()
"""


def gated(yard: str) -> str:
    import os
    import time
    from pathlib import Path

    with Path(yard, "starts").open("a") as file:
        file.write(f"{os.environ['CORRAL_ATTEMPT']} {os.getpid()}\n")
    print("begun", flush=True)
    while not Path(yard, "gate").exists():
        time.sleep(0.01)
    print("ending", flush=True)
    Path(yard, "ended").touch()
    return "done"


class Bench:
    """A controller with one job that writes down each of its starts and waits at a gate."""

    def __init__(self, path: Path, *engines: str) -> None:
        self.home, self.yard = path / "home", path / "yard"
        self.yard.mkdir()
        self.environ = {
            "CORRAL_WORKER_WRITE_PATHS": f"[{self.yard}]",
            "CORRAL_WORKER_CPUS": "2",
            "CORRAL_BACKOFF_S": "0",
            "CORRAL_CIRCUIT_FAILURES": "1",
            "CORRAL_CIRCUIT_COOL_S": "600",
        }
        flags = [word for engine in engines for word in ("--engine", engine)]
        self.controller = LiveController(self.home, *same_port(), *flags, environ=self.environ)

    @property
    def client(self) -> corral.Client:
        return corral.Client(self.controller.address, self.controller.token)

    def submit(self) -> str:
        with self.client as client:
            return client.submit(gated, (str(self.yard),), idempotency_key="one").id

    def submit_to_the_dying(self) -> None:
        self.controller.start()
        threading.Thread(target=attempted, args=(self.submit,), daemon=True).start()
        assert self.controller.process is not None
        assert self.controller.process.wait(STOP_S) == -signal.SIGKILL

    def starts(self) -> list[tuple[int, int]]:
        """(attempt, pid) of each start so far."""
        path = self.yard / "starts"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [(int(a), int(b)) for a, b in map(str.split, lines)]

    def started(self, times: int = 1) -> list[tuple[int, int]]:
        eventually(lambda: len(self.starts()) >= times, f"start {times}")
        return self.starts()

    def open_gate(self) -> None:
        (self.yard / "gate").touch()

    def tickets(self) -> list[Path]:
        return list((self.home / "processes").glob("*.json"))

    def processes(self) -> list[psutil.Process]:
        """Those that run an attempt by themselves."""
        found = psutil.process_iter(["cmdline"])
        folder = str(self.home / "processes")
        return [one for one in found if any(folder in word for word in one.info["cmdline"] or ())]

    def agent(self) -> psutil.Process:
        found = psutil.process_iter(["cmdline"])
        lines = ((one, one.info["cmdline"] or ()) for one in found)
        return next(
            one for one, line in lines if "corral.agent.main" in line and str(self.home) in line
        )

    def reached_for(self, *workloads: str) -> None:
        """The machine is one worker, and engines that take these reach it now."""
        with self.client as client:
            eventually(
                lambda: [set(one.workloads) for one in client.workers()] == [set(workloads)],
                f"a worker for {workloads}",
            )

    def proves(self, job: str, attempts: list[int]) -> None:
        """It ended well, after these attempts, which each ran once; nothing is left."""
        with self.client as client:
            assert client.job(job).result(timeout=PATIENCE_S) == "done"
            assert "".join(client.job(job).logs(follow=False)).count("ending") == 1
            (worker,) = client.workers()
            assert worker.circuit == ""
            assert client.run(abs, (-3,)) == 3
        assert [attempt for attempt, _ in self.starts()] == attempts
        eventually(lambda: not self.tickets() and not self.processes(), "no process is left")
        assert self.controller.stop() == 0, self.controller.log
        story = stories(self.home)[job]
        assert [fact.attempt for _, fact in story if isinstance(fact, AttemptPlaced)] == attempts
        assert isinstance(end_of(story), JobSucceeded)


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tmp_path, *getattr(request, "param", ["processes"]))
    try:
        yield bench
    finally:
        bench.open_gate()
        if bench.controller.process is not None and bench.controller.process.poll() is None:
            bench.controller.kill()
        for process in bench.processes():
            process.kill()


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The first controller from now on kills itself there."""

    def put(where: str) -> None:
        command = tmp_path / "dying-up"
        marker = str(tmp_path / "died")
        command.write_text(DYING_UP.format(python=sys.executable, where=where, marker=marker))
        command.chmod(0o700)
        monkeypatch.setattr(live, "CORRAL", str(command))

    return put


@pytest.mark.parametrize("where", ["before the start", "after the start"])
def test_killed_at_the_start(bench: Bench, dying: Callable[[str], None], where: str) -> None:
    bench.environ["CORRAL_WITHOUT"] = "early_starts"
    dying(where)
    bench.submit_to_the_dying()
    ((job, story),) = stories(bench.home).items()
    assert any(isinstance(fact, AttemptPlaced) for _, fact in story)
    assert len(bench.processes()) == (where == "after the start")
    bench.controller.start()
    assert bench.submit() == job
    bench.started()
    bench.open_gate()
    bench.proves(job, [1])


def test_killed_after_a_start_that_was_early(bench: Bench, dying: Callable[[str], None]) -> None:
    """The process was started for a job that was not written: nobody acknowledged it, and it must
    not run."""
    dying("after the start")
    bench.submit_to_the_dying()
    assert not stories(bench.home)
    assert len(bench.processes()) == 1
    bench.open_gate()
    bench.controller.start()
    eventually(lambda: not bench.tickets() and not bench.processes(), "the process gave up")
    assert not bench.starts()
    bench.proves(bench.submit(), [1])


def attempted(submit: Callable[[], str]) -> None:
    try:
        submit()
    except Exception as error:
        print(f"not acknowledged: {error}")


def test_killed_while_it_runs(bench: Bench) -> None:
    bench.controller.start()
    job = bench.submit()
    before = bench.started()
    bench.controller.kill()
    bench.controller.start()
    with bench.client as client:
        assert client.job(job).status().state == "running"
    bench.open_gate()
    bench.proves(job, [1])
    assert bench.starts() == before


def test_killed_with_an_end_on_its_way(bench: Bench) -> None:
    """The controller does not listen when the job ends, and never reads what was sent to it."""
    bench.controller.start()
    job = bench.submit()
    bench.started()
    assert bench.controller.process is not None
    os.kill(bench.controller.process.pid, signal.SIGSTOP)
    bench.open_gate()
    eventually((bench.yard / "ended").exists, "the end of the job")
    bench.controller.kill()
    bench.controller.start()
    bench.proves(job, [1])


def test_killed_between_the_end_and_its_receipt(bench: Bench, dying: Callable[[str], None]) -> None:
    dying("before the receipt")
    bench.controller.start()
    job = bench.submit()
    bench.started()
    bench.open_gate()
    assert bench.controller.process is not None
    assert bench.controller.process.wait(STOP_S) == -signal.SIGKILL
    assert isinstance(end_of(stories(bench.home)[job]), JobSucceeded)
    bench.controller.start()
    bench.proves(job, [1])


def test_killed_with_all_its_processes(bench: Bench) -> None:
    """As after a reboot: the job is tried again, and the machine is not blamed for it."""
    bench.controller.start()
    job = bench.submit()
    ((_, pid),) = bench.started()
    bench.controller.kill()
    for process in bench.processes():
        process.kill()
    eventually(lambda: not psutil.pid_exists(pid), "the job ends with the process that ran it")
    bench.controller.start()
    bench.started(2)
    bench.open_gate()
    bench.proves(job, [1, 2])
    (again,) = (fact for _, fact in stories(bench.home)[job] if isinstance(fact, JobRequeued))
    assert (again.code, again.fault) == ("worker_lost", "worker")


def test_a_controller_that_comes_back_at_another_address(bench: Bench) -> None:
    """Its processes would not find it, and a job that nobody hears of must not wait for them."""
    bench.controller.start()
    job = bench.submit()
    bench.started()
    bench.controller.kill()
    bench.controller.flags = (*bench.controller.flags, *same_port())
    bench.controller.start()
    bench.started(2)
    bench.open_gate()
    bench.proves(job, [1, 2])


def test_a_process_that_dies_under_a_living_controller(bench: Bench) -> None:
    bench.controller.start()
    job = bench.submit()
    bench.started()
    for process in bench.processes():
        process.kill()
    eventually(lambda: "process_died" in bench.controller.log, "somebody noticed")
    with bench.client as client:
        (worker,) = client.workers()
        assert worker.circuit
        assert client.job(job).status().attempt == 1


PLAN = {
    "name": "castle",
    "seed": 42,
    "backend": "sketch",
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64, "steps": 2}},
    "prompts": [{"positive": "a castle in the rain"}],
}


@pytest.mark.parametrize("bench", [["processes", "agents"]], indirect=True)
def test_a_machine_that_two_engines_reach_is_one_worker(bench: Bench) -> None:
    """Code goes through the first of them; images, which it does not take, through the other."""
    bench.controller.start()
    job = bench.submit()
    bench.started()
    with bench.client as client:
        batch = client.batch(PLAN)
        assert batch.wait(timeout=PATIENCE_S).states == {"succeeded": 1}
    bench.controller.kill()
    bench.controller.start()
    bench.open_gate()
    bench.proves(job, [1])
    facts = [fact for story in stories(bench.home).values() for _, fact in story]
    placed = [fact for fact in facts if isinstance(fact, AttemptPlaced)]
    assert [fact.engine for fact in placed] == ["processes", "agents", "processes"]
    assert len({fact.worker for fact in placed}) == 1


@pytest.mark.parametrize("bench", [["agents", "processes"]], indirect=True)
def test_while_the_agent_is_away_work_goes_on_through_processes(bench: Bench) -> None:
    bench.environ["CORRAL_HEARTBEAT_S"] = "0.2"
    bench.controller.start()
    bench.reached_for("python", "pipeline")
    job = bench.submit()
    bench.started()
    agent = bench.agent()
    agent.suspend()
    try:
        bench.reached_for("python")
        with bench.client as client:
            assert client.run(abs, (-4,)) == 4
        bench.controller.kill()
        bench.controller.start()
    finally:
        agent.resume()
    bench.reached_for("python", "pipeline")
    bench.open_gate()
    bench.proves(job, [1])
    facts = [fact for story in stories(bench.home).values() for _, fact in story]
    placed = [fact.engine for fact in facts if isinstance(fact, AttemptPlaced)]
    assert placed == ["agents", "processes", "agents"]
