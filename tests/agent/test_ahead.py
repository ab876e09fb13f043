"""Orders sent ahead of their turn: each attempt runs once, whatever becomes of its runner, and
none waits behind a long one.

A warm runner that goes through its attempts quickly is sent the next ones while it is busy. What is
sent in one frame with something that blocks is therefore first sent behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from msgspec.structs import replace

from corral.core.job import Blob, FunctionCall
from corral.protocol import messages as wire
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController
from tests.runtime.harness import zipped

WARM_UP = 60


def mark(folder: str, name: str) -> str:
    """Leaves a line for each time it runs."""
    fd = os.open(os.path.join(folder, "ran"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{name}\n".encode())
    os.close(fd)
    return name


def block(folder: str, name: str = "block") -> str:
    mark(folder, name)
    until = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, "go")):
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.002)
    return name


def die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid() if how == "job" else os.getppid(), signal.SIGKILL)
    time.sleep(60)


def leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def leave_child() -> None:
    subprocess.Popen(["sleep", "60"])


class Worker:
    """An agent with warm runners that are known to be quick."""

    def __init__(self, controller: FakeController, folder: Path) -> None:
        self.controller, self.folder = controller, folder

    def marks(self, *names: str) -> list[wire.JobDispatch]:
        return [self.controller.job(mark, str(self.folder), name) for name in names]

    def block(self) -> wire.JobDispatch:
        return self.controller.job(block, str(self.folder))

    def go(self) -> None:
        (self.folder / "go").touch()

    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().split()

    async def all_ran_once(self, *jobs: wire.JobDispatch) -> None:
        values = [await self.controller.value(job.job) for job in jobs]
        ran = Counter(self.ran())
        assert {value: ran[value] for value in values} == dict.fromkeys(values, 1)


StartWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
def worker(controller: FakeController, start: StartAgent, tmp_path: Path) -> StartWorker:
    async def started(cpus: float = 1.0, **settings: Any) -> Worker:
        folder = tmp_path / "shared"
        folder.mkdir()
        flags = {"worker.cpus": cpus, "worker.write_paths": [str(folder)], **settings}
        await start(**flags)
        jobs = [controller.job(os.getpid) for _ in range(WARM_UP)]
        await controller.send(*jobs)
        for job in jobs:
            await controller.completed(job.job)
        return Worker(controller, folder)

    return started


async def test_nobody_waits_behind_a_long_attempt(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker(2.0)
    long, short = here.block(), here.marks("a", "b", "c", "d")
    await controller.send(long, *short)
    await here.all_ran_once(*short)
    here.go()
    await here.all_ran_once(long)


def where(folder: str, name: str) -> str:
    return f"{name} {mark(folder, str(os.getpid()))}"


async def test_orders_are_sent_ahead_for_one_user_only(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    users = ["", "alice", "mallory", ""]
    jobs = [
        controller.job(where, str(here.folder), user, user=user, on_behalf=bool(turn % 2 and user))
        for turn in range(10)
        for user in users
    ]
    await controller.send(*jobs)
    processes: dict[str, set[tuple[str, bool]]] = {}
    for turn, job in enumerate(jobs):
        user, _, process = (await controller.value(job.job)).partition(" ")
        processes.setdefault(process, set()).add((user, bool(turn // len(users) % 2 and user)))
    assert all(len(owners) == 1 for owners in processes.values()), processes
    assert len(processes) >= 5


async def test_what_waits_behind_a_long_attempt_can_be_recalled(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    long, recalled, other = here.block(), *here.marks("recalled", "other")
    await controller.send(long, recalled, other)
    await controller.send(wire.JobRecall(recalled.job, 1))
    await controller.expect(wire.JobReturned, recalled.job)
    here.go()
    await here.all_ran_once(long, other)
    assert "recalled" not in here.ran()


async def test_a_place_that_becomes_free_a_moment_later_is_taken(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker(2.0)
    # Its place is free only when its process is gone, and by then the others wait elsewhere.
    leaving, long, short = controller.job(leave_child), here.block(), here.marks("a", "b")
    await controller.send(leaving, long, *short)
    await here.all_ran_once(*short)
    here.go()
    await here.all_ran_once(long)


async def test_what_waits_in_a_runner_is_cancelled_and_never_begins(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    long, cancelled, other = here.block(), *here.marks("cancelled", "other")
    await controller.send(long, cancelled, other)
    await controller.send(wire.JobCancel(cancelled.job, 1, 0.0))
    failure = (await controller.failed(cancelled.job)).failure
    assert failure.code == "cancelled"
    assert "before it started" in failure.message
    here.go()
    await here.all_ran_once(long, other)
    assert "cancelled" not in here.ran()


async def test_a_cancel_of_what_runs_leaves_those_behind_it_alone(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    for turn in range(5):
        long, behind = here.block(), here.marks(f"a{turn}", f"b{turn}", f"c{turn}")
        await controller.send(long, *behind)
        await controller.send(wire.JobCancel(long.job, 1, 0.2))
        assert (await controller.failed(long.job)).failure.code == "cancelled"
        await here.all_ran_once(*behind)


@pytest.mark.parametrize("how", ["job", "supervisor", "exit"])
async def test_a_death_is_the_end_of_what_ran_and_of_nothing_else(
    controller: FakeController, worker: StartWorker, how: str
) -> None:
    here = await worker(**{"worker.isolate": False})
    for turn in range(5):
        before, dying = here.marks(f"x{turn}", f"y{turn}"), controller.job(die, how)
        behind = here.marks(f"a{turn}", f"b{turn}", f"c{turn}")
        await controller.send(*before, dying, *behind)
        code = (await controller.failed(dying.job)).failure.code
        assert code == ("exit_code" if how == "exit" else "process_died")
        await here.all_ran_once(*before, *behind)


@pytest.mark.parametrize("leave", [leave_thread, leave_child])
async def test_a_runner_that_retires_gives_back_what_waits_in_it(
    controller: FakeController, worker: StartWorker, leave: Callable[[], None]
) -> None:
    here = await worker()
    for turn in range(5):
        jobs = [*here.marks(f"a{turn}"), controller.job(leave), *here.marks(f"b{turn}", f"c{turn}")]
        await controller.send(*jobs)
        await controller.completed(jobs[1].job)
        await here.all_ran_once(jobs[0], *jobs[2:])


async def test_a_drain_returns_what_has_not_begun(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    long, behind = here.block(), here.marks("a", "b", "c")
    await controller.send(long, *behind)
    await controller.send(wire.Drain(30.0))
    for job in behind:
        await controller.expect(wire.JobReturned, job.job)
    here.go()
    await here.all_ran_once(long)
    await controller.expect(wire.WorkerGoodbye)
    assert here.ran() == ["block"]


async def test_what_is_left_in_folders_is_gone_for_the_next_one_sent_ahead(
    controller: FakeController, worker: StartWorker
) -> None:
    await worker()

    def litter() -> list[str]:
        found = os.listdir() + os.listdir(os.environ["TMPDIR"])
        os.makedirs("deep/down")
        with open(os.path.join(os.environ["TMPDIR"], "file"), "w") as file:
            file.write("x")
        os.symlink("/", "link")
        return found

    jobs = [controller.job(litter) for _ in range(40)]
    await controller.send(*jobs)
    assert [await controller.value(job.job) for job in jobs] == [[]] * len(jobs)


async def test_other_variables_or_secrets_are_another_process(
    controller: FakeController, worker: StartWorker
) -> None:
    await worker()

    def look() -> tuple[str, str, int]:
        import zlib

        # A result must not hold a secret, only what follows from it.
        key = zlib.crc32(os.environ.get("KEY", "").encode())
        return os.environ.get("WHO", ""), f"{key:x}", os.getpid()

    plain, mine, yours = ("", ""), ("", "a long key of mine"), ("", "a long key of yours")
    kinds = [plain, mine, plain, ("a", ""), plain, mine, yours]
    jobs, wanted = [], []
    for who, key in [kind for _ in range(3) for kind in kinds for _ in range(3)]:
        job = controller.job(look, env={"WHO": who} if who else {})
        jobs.append(replace(job, secrets={"KEY": key} if key else {}))
        wanted.append((who, f"{zlib.crc32(key.encode()):x}"))
    await controller.send(*jobs)
    found = [await controller.value(job.job) for job in jobs]
    assert [one[:2] for one in found] == wanted
    kinds_of_process: dict[int, set[tuple[str, str]]] = {}
    for who, key, pid in found:
        kinds_of_process.setdefault(pid, set()).add((who, key))
    assert [kinds for kinds in kinds_of_process.values() if len(kinds) > 1] == []


async def test_each_version_of_own_code_has_processes_of_its_own(
    controller: FakeController, worker: StartWorker, tmp_path: Path
) -> None:
    """The worker keeps both, as of jobs before; without them nobody finds the module."""
    kept = tmp_path / "worker" / "assets"
    kept.mkdir()
    versions: list[Blob | None] = [None]
    for number in (1, 2):
        module = f"import os\ndef look():\n    return {number}, os.getpid()\n"
        code = zipped({"trough.py": module})
        versions.append(Blob.of(code, inline=False))
        (kept / Blob.of(code).sha256).write_bytes(code)
    await worker()
    arguments, named = Blob.of(cloudpickle.dumps(((), {}))), Blob.of(b"ctrough\nlook\n.")
    plain = Blob.of(cloudpickle.dumps(lambda: (0, os.getpid())))
    jobs, wanted = [], []
    for number in [0, 1, 2] * 4 + [1] * 20 + [2] * 20:
        function = named if number else plain
        jobs.append(controller.dispatch(FunctionCall(function, arguments, versions[number])))
        wanted.append(number)
    await controller.send(*jobs)
    found = [await controller.value(job.job) for job in jobs]
    assert [number for number, _ in found] == wanted
    versions_of: dict[int, set[int]] = {}
    for number, pid in found:
        versions_of.setdefault(pid, set()).add(number)
    assert [numbers for numbers in versions_of.values() if len(numbers) > 1] == []


async def test_large_orders_arrive_whole_among_small_ones(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker(2.0)

    def call(piece: bytes) -> wire.JobDispatch:
        data = cloudpickle.dumps(((piece,), {}))
        blob = Blob(hashlib.sha256(data).hexdigest(), len(data), data)
        return controller.dispatch(FunctionCall(Blob.of(cloudpickle.dumps(zlib.crc32)), blob))

    data = [os.urandom(random.choice([10, 20_000, 40_000, 500_000])) for _ in range(80)]
    jobs = [call(piece) for piece in data]
    long = here.block()
    await controller.send(*jobs[:20], long, *jobs[20:40])
    await controller.send(*jobs[40:])
    assert [await controller.value(job.job) for job in jobs] == list(map(zlib.crc32, data))
    here.go()
    await here.all_ran_once(long)


async def test_a_large_order_is_taken_back_whole_or_not_at_all(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker()
    for turn in range(5):
        long = here.block()
        large = controller.job(mark, str(here.folder), f"large{turn}", name="n" * 100_000)
        small = here.marks(f"small{turn}")
        await controller.send(long, large, *small)
        await controller.expect(wire.JobStarted, long.job)
        await controller.send(wire.JobCancel(long.job, 1, 0.1))
        await here.all_ran_once(large, *small)


async def test_each_of_many_runs_once_while_runners_are_killed(
    controller: FakeController, worker: StartWorker
) -> None:
    here = await worker(2.0, **{"worker.isolate": False})

    def tell(folder: str, name: str) -> int:
        attempt = os.environ["CORRAL_ATTEMPT"]
        fd = os.open(os.path.join(folder, "ran"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{name}/{attempt}/{os.getpid()}/{os.getppid()}\n".encode())
        os.close(fd)
        return int(name)

    count = 2000
    jobs = {}
    for number in range(count):
        job = controller.job(tell, str(here.folder), str(number))
        jobs[job.job] = job
    lost = 0
    told = len(controller.heard)
    ended: dict[str, wire.JobCompleted] = {}

    async def kill() -> None:
        while len(ended) < count:
            await asyncio.sleep(random.uniform(0.01, 0.08))
            lines = here.ran() if (here.folder / "ran").exists() else []
            if lines:
                pids = [int(pid) for pid in lines[-1].split("/")[2:]]
                try:
                    os.kill(random.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    names = list(jobs)
    killing = asyncio.create_task(kill())
    try:
        for first in range(0, count, 100):
            await controller.send(*(jobs[name] for name in names[first : first + 100]))
        while len(ended) < count:
            async with asyncio.timeout(60):
                await controller.news(told)
            fresh, told = controller.heard[told:], len(controller.heard)
            for message in fresh:
                if isinstance(message, wire.JobCompleted) and message.job in jobs:
                    assert message.job not in ended
                    ended[message.job] = message
                elif isinstance(message, wire.JobFailed):
                    assert message.failure.code in ("process_died", "killed_by_signal")
                    lost += 1
                    again = replace(jobs[message.job], attempt=message.attempt + 1)
                    await controller.send(again)
    finally:
        killing.cancel()
    runs = Counter(line.rsplit("/", 2)[0] for line in here.ran())
    assert max(runs.values()) == 1
    assert {int(name.split("/")[0]) for name in runs} == set(range(count))
    assert lost
