"""Attempts from dispatch to their end, with the real runner."""

from __future__ import annotations

import os
import time
import zipfile
from contextlib import suppress
from io import BytesIO

import psutil
import pytest
from msgspec import Raw
from msgspec.structs import replace

from corral.core.job import Blob, Needs, QueueClass, ScriptCall, document_digest
from corral.protocol import messages as wire
from tests.agent.conftest import BOTH_KINDS, StartAgent
from tests.agent.fake_controller import FakeController
from tests.eventually import eventually_async
from tests.runtime.harness import alive


@pytest.fixture(params=BOTH_KINDS)
def spawned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def double(number: int) -> int:
    print("doubling", number)
    return 2 * number


async def test_a_function_starts_says_its_output_and_completes(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(double, 21)
    await controller.send(job)
    assert await controller.value(job.job) == 42
    completed = await controller.completed(job.job)
    assert completed.digest == job.digest
    assert completed.attempt == 1
    kinds = [type(message).__name__ for message in controller.heard if hasattr(message, "job")]
    assert kinds == ["JobStarted", "JobOutput", "JobCompleted"]
    assert controller.output(job.job) == "doubling 21\n"


def garble(said: bytes) -> None:
    """Says it where only Corral speaks."""
    import contextlib
    import stat

    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                os.write(int(name), said)
    time.sleep(600)


@pytest.mark.parametrize("spawned", [False], ids=["forked"])
@pytest.mark.parametrize(
    "said",
    [
        b'\n{"frame":"progress","message":"\xff"}\n',
        b'\n{"frame":"started","odd":' + b"[" * 2000 + b"\n",
    ],
    ids=["not utf-8", "deep"],
)
async def test_a_job_that_garbles_frames_fails_and_nothing_else(
    controller: FakeController, start: StartAgent, said: bytes
) -> None:
    await start(**{"worker.cpus": 1.0})
    job, next_one = controller.job(garble, said), controller.job(double, 21)
    await controller.send(job, next_one)
    failure = (await controller.failed(job.job)).failure
    assert (failure.code, "could not be read" in failure.message) == ("no_result", True)
    assert await controller.value(next_one.job) == 42


def insist(said: bytes) -> None:
    """Says it again and again where only Corral speaks, with its own number for PID."""
    import contextlib
    import stat

    said = said.replace(b"PID", str(os.getpid()).encode())
    with open("left", "w"):
        pass
    for _ in range(300):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                mode = os.fstat(int(name)).st_mode
                if int(name) > 2 and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                    os.write(int(name), said)
        time.sleep(0.1)


@pytest.mark.parametrize("spawned", [False], ids=["forked"])
async def test_a_job_cannot_begin_again_to_have_its_duration_again(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(insist, b'\n{"frame":"started"}\n', duration_s=1.0)
    await controller.send(job)
    assert (await controller.failed(job.job)).failure.code == "over_duration"
    assert sum(isinstance(message, wire.JobStarted) for message in controller.heard) == 1


@pytest.mark.parametrize("spawned", [False], ids=["forked"])
async def test_a_process_that_lies_about_an_empty_folder_is_not_used_again(
    controller: FakeController, start: StartAgent
) -> None:
    """It may still run, and change the folder under whoever would empty it."""
    await start()
    told = b'\n{"frame":"output","stream":"stdout","text":"PID "}'
    told += b'\n{"frame":"result","result":null,"retire":false}\n'
    job = controller.job(insist, told)
    await controller.send(job)
    await controller.completed(job.job)
    liar = int(controller.output(job.job).split()[0])
    await eventually_async(lambda: not psutil.pid_exists(liar), "the liar's end")


def _supervisors(*, waiting: bool = False) -> list[int]:
    """Those of the agent, which lives in this process; or only those that have no job process."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "runner.py" in " ".join(one.cmdline()) and not (waiting and one.children()):
                found.append(one.pid)
    return found


async def test_one_supervisor_waits_for_the_next_runner(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0, "worker.warm_idle_s": 2.0})

    used: set[int] = set()
    """On their way out, a moment without a job process too."""

    async def waits() -> int:
        found: set[int] = set()

        def one() -> bool:
            found.clear()
            found.update(set(_supervisors(waiting=True)) - used)
            return len(found) == 1

        await eventually_async(one, "one to wait")
        return found.pop()

    async def supervisor() -> int:
        job = controller.job(os.getppid, fresh=True)
        await controller.send(job)
        found: int = await controller.value(job.job)
        used.add(found)
        return found

    await supervisor()
    assert await waits() == await supervisor()
    killed = await waits()
    psutil.Process(killed).kill()
    await eventually_async(lambda: not alive(killed), "its end")
    assert await supervisor() != killed  # though nobody may have told the agent yet
    assert await waits() == await supervisor()
    await eventually_async(lambda: not _supervisors(), "the end of those that nobody needs")


async def test_functions_share_a_warm_process_and_fresh_ones_do_not(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0})
    jobs = [
        controller.job(os.getpid),
        controller.job(os.getpid),
        controller.job(os.getpid, fresh=True),
    ]
    await controller.send(*jobs)
    pids = [await controller.value(job.job) for job in jobs]
    assert pids[0] == pids[1] != pids[2]
    started = [await controller.expect(wire.JobStarted, job.job) for job in jobs]
    assert [message.warm for message in started] == [True, True, False]


async def test_many_dispatches_in_one_frame_all_complete(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    jobs = [controller.job(double, number) for number in range(200)]
    await controller.send(*jobs)
    for number, job in enumerate(jobs):
        assert await controller.value(job.job) == 2 * number


async def test_an_exception_reaches_the_controller(
    controller: FakeController, start: StartAgent
) -> None:
    await start()

    def wrong() -> None:
        raise ValueError("no such number")

    job = controller.job(wrong)
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert (failure.code, failure.type) == ("exception", "ValueError")
    assert "no such number" in failure.message
    assert "in wrong" in failure.traceback


async def test_interactive_goes_before_batch_and_priority_before_arrival(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0})
    jobs = [
        controller.job(double, 0),
        controller.job(double, 1),
        controller.job(double, 2, priority=5),
        controller.job(double, 3, queue_class=QueueClass.INTERACTIVE),
    ]
    await controller.send(*jobs)
    for job in jobs:
        await controller.completed(job.job)
    order = [message.job for message in controller.heard if isinstance(message, wire.JobStarted)]
    assert order == [jobs[3].job, jobs[2].job, jobs[0].job, jobs[1].job]


async def test_a_script_runs_in_a_process_of_its_own(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    package = BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("hello.py", "import sys\nprint('hello', *sys.argv[1:])\nsys.exit(3)\n")
    work = ScriptCall(Blob.of(package.getvalue()), "hello.py", ("you",))
    job = controller.dispatch(work)
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert (failure.code, failure.exit_code) == ("exit_code", 3)
    assert controller.output(job.job) == "hello you\n"


async def test_a_dispatch_said_again_after_its_end_is_nothing_new(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job, other = controller.job(double, 4), controller.job(double, 5)
    await controller.send(job)
    assert await controller.value(job.job) == 8
    await controller.send(job)  # its end was confirmed: the agent has forgotten its result
    await controller.send(other)
    assert await controller.value(other.job) == 10
    ended = [one.job for one in controller.heard if isinstance(one, wire.JobCompleted)]
    assert ended == [job.job, other.job]


async def test_a_dispatch_said_twice_runs_once(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job, other = controller.job(double, 1), controller.job(double, 2)
    await controller.send(job, job)
    await controller.completed(job.job)
    await controller.send(other)
    await controller.completed(other.job)
    said = [m.job for m in controller.heard if isinstance(m, wire.JobStarted)]
    assert said == [job.job, other.job]


async def test_a_document_with_another_digest_is_refused(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(double, 1, digest="0" * 64)
    await controller.send(job)
    assert (await controller.failed(job.job)).failure.code == "wrong_document"


async def test_work_of_an_unknown_kind_is_refused_and_not_run_as_code(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(double, 1)
    document = bytes(job.document).replace(b'"type":"function"', b'"type":"sculpture"')
    await controller.send(replace(job, document=Raw(document), digest=document_digest(document)))
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "wrong_document"
    assert "sculpture" in failure.message


async def test_a_worker_without_code_says_so_and_refuses(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.allow_code": False})
    register = await controller.expect(wire.WorkerRegister)
    assert register.capabilities.workloads == ("pipeline",)
    job = controller.job(double, 1)
    await controller.send(job)
    assert (await controller.failed(job.job)).failure.code == "workload_refused"


async def test_an_attempt_sees_its_gpus_and_no_others(
    controller: FakeController, start: StartAgent
) -> None:
    gpus = [
        {"name": "RTX 3060", "vram_gb": 12},
        {"name": "RTX 3090", "vram_gb": 24},
        {"name": "RTX 4090", "vram_gb": 48, "id": "GPU-48"},
    ]
    await start(**{"worker.gpus": gpus})

    def seen() -> list[str | None]:
        return [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")]

    sly = {"CUDA_VISIBLE_DEVICES": "0,1"}
    large = controller.job(seen, needs=Needs(gpus=1, vram_gb=20), env=sly)
    larger = controller.job(seen, needs=Needs(gpus=1, vram_gb=40))
    none = controller.job(seen)
    await controller.send(large, larger, none)
    assert await controller.value(large.job) == ["1", "1"]
    assert (await controller.expect(wire.JobStarted, large.job)).devices == ("1",)
    assert await controller.value(larger.job) == ["GPU-48", "GPU-48"]
    assert await controller.value(none.job) == ["", ""]


async def test_an_attempt_gets_its_own_variables_and_none_of_the_agents(
    controller: FakeController, start: StartAgent
) -> None:
    os.environ["CORRAL_TEST_SECRET"] = "kept"
    try:
        await start()
        job = controller.job(lambda: dict(os.environ), env={"COLOUR": "green"})
        await controller.send(job)
        environ = await controller.value(job.job)
    finally:
        del os.environ["CORRAL_TEST_SECRET"]
    assert environ["COLOUR"] == "green"
    assert environ["HOME"].endswith("/work")
    assert environ["PATH"].split(os.pathsep)[0].startswith(str(environ["VIRTUAL_ENV"]))
    assert "CORRAL_TEST_SECRET" not in environ
    assert "CORRAL_TOKEN" not in environ


async def test_what_an_attempt_leaves_behind_is_gone_for_the_next(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0})

    def litter() -> tuple[int, list[str]]:
        found = os.listdir()
        os.makedirs("deep/down")
        with open("deep/down/file", "w") as file:
            file.write("x")
        os.chmod("deep/down", 0)
        return os.getpid(), found

    jobs = [controller.job(litter) for _ in range(3)]
    await controller.send(*jobs)
    answers = [await controller.value(job.job) for job in jobs]
    assert [found for _, found in answers] == [[], [], []]
    assert len({pid for pid, _ in answers}) == 1


async def test_a_recall_returns_what_has_not_started(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0})

    def block() -> None:
        import time

        time.sleep(60)

    blocking, waiting = controller.job(block), controller.job(double, 2)
    await controller.send(blocking, waiting)
    await controller.expect(wire.JobStarted, blocking.job)
    await controller.send(
        wire.JobRecall(waiting.job, 1),
        wire.JobRecall(blocking.job, 1),
        wire.JobCancel(blocking.job, 1, 0.1),
    )
    assert (await controller.expect(wire.JobReturned, waiting.job)).reason == "recalled"
    assert (await controller.failed(blocking.job)).failure.code == "cancelled"


async def test_needs_beyond_the_worker_are_returned(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(double, 1, needs=Needs(gpus=1))
    await controller.send(job)
    assert "more than this worker has" in (await controller.expect(wire.JobReturned)).reason


async def test_what_goes_back_is_said_until_it_is_received(
    controller: FakeController, start: StartAgent
) -> None:
    """Whoever starts it again must not hear afterwards that it never ran."""
    controller.receives = False
    await start()
    job = controller.job(double, 1, needs=Needs(gpus=1))
    await controller.send(job)
    await controller.expect(wire.JobReturned)
    await controller.sockets[-1].close()
    again = await controller.expect(wire.WorkerRegister, count=2)
    assert again.attempts == ((job.job, 1),)
    await controller.expect(wire.JobReturned, count=2)
    first = next(one for one in controller.heard if isinstance(one, wire.WorkerRegister))
    assert first.incarnation == again.incarnation != ""
