"""Functions from a client to a worker and back, through a real controller."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import corral
from corral.contract import corral_pb2 as pb
from corral.contract.views import Output, Progress
from corral.core.errors import InvalidJob, JobCancelled, JobFailed
from corral.sdk.submit.outgoing import HOLD_S
from tests.e2e import shapes
from tests.e2e.raw import submit_and_wait
from tests.eventually import eventually
from tests.live import LiveController


def test_every_form_of_function(client: corral.Client) -> None:
    base = 7

    def nested(x: int) -> int:
        return x + base

    assert client.run(shapes.add_offset, (1,)) == 1101
    assert client.run(nested, (1,)) == 8
    assert client.run(lambda x, *, y: x * y, (6,), {"y": 7}) == 42
    assert client.run(shapes.decorated, (4,)) == 10
    assert client.run(shapes.Counter(5).count, (6,)) == 11
    assert client.run(shapes.Counter.named, (3,)) == "Counter3"
    assert client.run(len, ("four",)) == 4


async def _later(x: int) -> int:
    return x + 1


def test_coroutines_too(client: corral.Client) -> None:
    value: object = client.run(_later, (1,))
    assert value == 2


def test_large_arguments_and_results_travel_beside(client: corral.Client) -> None:
    blob = os.urandom(3_000_000)
    assert client.run(lambda data: data[::-1], (blob,)) == blob[::-1]


def test_the_real_exception_reaches_the_caller(client: corral.Client) -> None:
    with pytest.raises(JobFailed) as caught:
        client.run(shapes.fails, (3,))
    error: Any = caught.value
    assert "OwnError" in error.failure.type
    assert "(3, 'try again')" in str(error)
    assert "raise OwnError" in error.remote_traceback
    assert "corral/runtime" not in error.remote_traceback
    assert isinstance(error.__cause__, shapes.OwnError)
    assert error.__cause__.hint == "try again"


def test_prints_of_every_kind_arrive(client: corral.Client) -> None:
    def talk() -> str:
        print("one", flush=True)
        os.write(1, b"two without newline")
        os.system("echo three from a child >&2")
        print("\xff four", flush=True)
        os.write(1, b"\xff\xfe raw")
        return "done"

    handle = client.submit(talk)
    heard = [event for event in handle.events() if isinstance(event, Output)]
    assert handle.result() == "done"
    out = b"".join(event.data for event in heard if event.stream == "stdout")
    err = b"".join(event.data for event in heard if event.stream == "stderr")
    assert out.startswith(b"one\ntwo without newline")
    assert out.endswith("ÿ four\n".encode() + b"\xff\xfe raw")
    assert err == b"three from a child\n"


def test_output_arrives_before_the_end(client: corral.Client) -> None:
    """The job prints, then waits for a sign that only somebody who heard it gives."""

    def wait_for_cancel() -> None:
        from corral import job

        print("ready", flush=True)
        while not job.cancelled():
            time.sleep(0.01)
        print("stopped kindly", flush=True)

    handle = client.submit(wait_for_cancel)
    text = b""
    for event in handle.events():
        if isinstance(event, Output):
            text += event.data
            if text == b"ready\n":
                handle.cancel()
    assert text == b"ready\nstopped kindly\n"
    with pytest.raises(JobCancelled):
        handle.result()


def test_a_function_that_ignores_cancel_is_ended(with_gpus: corral.Client) -> None:
    def stubborn() -> None:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1000)

    handle = with_gpus.submit(stubborn)
    next(event for event in handle.events() if isinstance(event, Output))
    handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(timeout=30)


def test_over_duration_fails_with_the_whole_tree(with_gpus: corral.Client, tmp_path: Path) -> None:
    def spawn() -> None:
        import subprocess

        child = subprocess.Popen(["sleep", "1234567"], start_new_session=True)
        print(child.pid, flush=True)
        time.sleep(1000)

    handle = with_gpus.submit(spawn, duration=1)
    output = b"".join(event.data for event in handle.events() if isinstance(event, Output))
    with pytest.raises(JobFailed, match="duration"):
        handle.result()
    pid = int(output)
    eventually(lambda: not _alive(pid), "the child has ended")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_sees_its_gpus_and_no_others(with_gpus: corral.Client) -> None:
    def seen() -> tuple[str, str]:
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]

    one, _ = with_gpus.run(seen, gpus=1)
    both, _ = with_gpus.run(seen, gpus=2)
    share, _ = with_gpus.run(seen, gpu_memory=0.5)
    big, _ = with_gpus.run(seen, vram_gb=20)
    none, _ = with_gpus.run(seen)
    assert set(both.split(",")) == {"0", "1"}
    assert {one, share} <= {"0", "1"}
    assert big == "0"
    assert with_gpus.run(seen, gpu="rtx 3060")[0] == "1"
    assert none == ""
    with pytest.raises(corral.ExceedsAllWorkers, match="needs 3 GPUs, it has 2"):
        with_gpus.run(seen, gpus=3)
    with pytest.raises(corral.ExceedsAllWorkers, match="called H100, it has 1 RTX 3060 and 1 RTX"):
        with_gpus.run(seen, gpu="H100")
    with pytest.raises(InvalidJob):
        with_gpus.run(seen, gpu_memory=0.55)


def test_two_large_shares_do_not_run_on_one_gpu(with_gpus: corral.Client) -> None:
    """0.8 and 0.8: never on the same card at the same time."""

    def hold(path: str) -> tuple[str, float, float]:
        print("holding", flush=True)
        begun = time.time()
        deadline = time.monotonic() + 20
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.01)
        return os.environ["CUDA_VISIBLE_DEVICES"], begun, time.time()

    handles = [with_gpus.submit(hold, ("/etc/hostname",), gpu_memory=0.8) for _ in range(2)]
    # By the jobs' own clocks: the controller notes an end when it hears of it, which may be after
    # the next one began.
    (first, _, ended), (second, begun, _) = (handle.result(timeout=60) for handle in handles)
    assert first != second or begun >= ended


def halfway(seconds: float) -> str:
    from corral import job

    job.progress(0.5, "halfway")
    time.sleep(seconds)
    return "there"


@pytest.mark.parametrize("seconds", [0.0, 2 * HOLD_S], ids=["one answer", "a stream"])
def test_progress_reaches_whoever_waits(client: corral.Client, seconds: float) -> None:
    seen: list[Progress] = []
    assert client.run(halfway, (seconds,), progress=seen.append, output=None) == "there"
    assert [(one.fraction, one.message) for one in seen] == [(0.5, "halfway")]


def test_progress_of_a_script_reaches_whoever_waits(client: corral.Client, tmp_path: Path) -> None:
    seen: list[Progress] = []
    script = tmp_path / "told.py"
    script.write_text("from corral import job\njob.progress(1.0, 'done')\n")
    client.run_script(script, progress=seen.append, output=None)
    assert [(one.fraction, one.message) for one in seen] == [(1.0, "done")]


def test_a_retry_goes_on_from_its_checkpoint(client: corral.Client) -> None:
    def train() -> list[int]:
        from corral import job

        done: list[int] = job.restore([])
        for epoch in range(len(done), 4):
            done.append(epoch)
            job.progress((epoch + 1) / 4, f"epoch {epoch}")
            job.metric(loss=1 / (epoch + 1), step=epoch)
            job.checkpoint(done)
            if epoch == 1 and job.attempt() == 1:
                raise RuntimeError("power cut")
        return [job.attempt(), *done]

    handle = client.submit(train, retries=1)
    messages = [event.message for event in handle.events() if isinstance(event, Progress)]
    assert handle.result() == [2, 0, 1, 2, 3]
    assert [text for text in messages if text] == ["epoch 0", "epoch 1", "epoch 2", "epoch 3"]


def test_a_kill_while_a_checkpoint_is_sent_leaves_a_whole_one(client: corral.Client) -> None:
    def train() -> tuple[int, int]:
        import os

        from corral import job

        if job.attempt() == 1:
            job.checkpoint(b"1" * 1000)
            job.restore()  # until the controller has it
            job.checkpoint(b"2" * (30 << 20))
            os.kill(os.getpid(), 9)
        found = job.restore(b"")
        return job.attempt(), len(found) * (len(set(found)) == 1)

    attempt, size = client.run(train)
    assert attempt == 2
    assert size in (1000, 30 << 20)


def test_only_the_last_checkpoint_takes_room(
    controller: LiveController, client: corral.Client
) -> None:
    def train() -> None:
        import os

        from corral import job

        for _ in range(4):
            job.checkpoint(os.urandom(3 << 20))
            job.restore()  # until the controller has it
        raise RuntimeError("diverged")

    def large() -> set[str]:
        found = (controller.home / "blobs").glob("??/*")
        return {path.name for path in found if path.stat().st_size > 3 << 20}

    before = large()
    first = client.submit(train)
    with pytest.raises(RuntimeError, match="diverged"):
        first.result()
    eventually(lambda: len(large() - before) == 1, "the others go")
    (kept,) = large() - before
    shown = first.status().last_checkpoint
    assert shown is not None
    assert shown.size > 3 << 20
    again = first.retry()
    with pytest.raises(RuntimeError, match="diverged"):
        again.result()
    eventually(lambda: len(large() - before) == 2, "the others go")
    assert kept in large(), "the first job can still be retried from there"


def test_a_failed_job_is_retried_from_its_checkpoint(client: corral.Client) -> None:
    def train(broken: str) -> list[int]:
        from corral import job

        done: list[int] = job.restore([])
        job.checkpoint([*done, len(done)])
        if len(done) < 2:
            raise RuntimeError(broken)
        return done

    first = client.submit(train, ("disk full",), duration="1m")
    with pytest.raises(RuntimeError, match="disk full"):
        first.result()
    anew = first.retry(from_start=True, retries=2)
    assert anew.result() == [0, 1]
    second = first.retry(duration="2h")
    with pytest.raises(RuntimeError, match="disk full"):
        second.result()
    assert second.retry().result() == [0, 1]


def test_artifacts(client: corral.Client, tmp_path: Path) -> None:
    def make() -> None:
        from corral import job

        folder = os.environ["CORRAL_OUTPUT_DIR"]
        os.mkdir(f"{folder}/sub")
        Path(f"{folder}/sub/a.txt").write_text("alpha")
        Path("b.bin").write_bytes(b"\0" * 100_000)
        job.artifact("b.bin")

    handle = client.submit(make)
    handle.result()
    found = {artifact.name: artifact.size for artifact in handle.artifacts()}
    assert found == {"sub/a.txt": 5, "b.bin": 100_000}
    handle.download("sub/a.txt", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "alpha"


def test_the_same_process_serves_the_next_function(client: corral.Client) -> None:
    pids = {client.run(os.getpid, cpus=2) for _ in range(3)}
    assert len(pids) == 1
    assert client.run(os.getpid, fresh=True) not in pids


def test_a_job_cannot_read_the_token(client: corral.Client, controller: Any) -> None:
    def steal(path: str) -> str:
        return Path(path).read_text()

    with pytest.raises(JobFailed, match="PermissionError"):
        client.run(steal, (str(controller.home / "token"),))


def test_memory_is_limited(client: corral.Client) -> None:
    def greedy() -> int:
        return len(bytearray(2_000_000_000))

    with pytest.raises(JobFailed) as caught:
        client.run(greedy, memory_gb=0.3)
    error: Any = caught.value
    assert error.failure.code == "out_of_memory"


def test_a_gigabyte_is_cut_in_the_middle(with_gpus: corral.Client) -> None:
    """The limit of this controller is 200 kB: head and tail stay, the gap is told."""

    def chatter() -> None:
        for n in range(200_000):
            print(f"line {n:06d} {'x' * 40}")

    handle = with_gpus.submit(chatter)
    handle.result(timeout=100)
    text, skipped = b"", 0
    for event in handle.events():
        if isinstance(event, Output):
            skipped += event.skipped
            text += event.data
    assert text.startswith(b"line 000000 ")
    assert text.rstrip().endswith(b"line 199999 " + b"x" * 40)
    assert skipped > 1_000_000
    assert len(text) < 400_000


def test_exits_without_a_result(client: corral.Client) -> None:
    for leave, code in ((0, "no_result"), (3, "exit_code")):
        with pytest.raises(JobFailed) as caught:
            client.run(lambda code: os._exit(code), (leave,), retries=0)
        error: Any = caught.value
        assert error.failure.code == code


def test_map_keeps_order_and_raises_what_failed(client: corral.Client) -> None:
    assert list(client.map(lambda x: x * x, range(300))) == [x * x for x in range(300)]
    assert sorted(client.map(lambda x: -x, range(50), ordered=False)) == list(range(-49, 1))
    with pytest.raises(JobFailed, match="ZeroDivisionError"):
        list(client.map(lambda x: 1 // x, [1, 0, 2]))


def test_another_python_is_refused_before_anything_runs(
    controller: LiveController,
) -> None:
    """The client says 3.99: no such Python exists anywhere."""

    call = pb.FunctionCall(
        function=pb.BlobRef(data=cloudpickle.dumps(len)),
        arguments=pb.BlobRef(data=cloudpickle.dumps((("x",), {}))),
    )
    ended = submit_and_wait(controller, pb.JobSubmission(function=call, python="3.99"))
    assert ended.state == "failed"
    assert ended.failure.code == "python_unavailable"
    assert "3.99" in ended.failure.message


def test_another_python_is_provided_where_uv_has_one(controller: LiveController) -> None:
    """Which Pythons a machine has is its own affair; what comes of asking is not."""
    import io
    import sys
    import zipfile

    minor = 12 if sys.version_info[1] != 12 else 13
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("main.py", f"import sys; assert sys.version_info[1] == {minor}")
    job = pb.JobSubmission(code_package=package.getvalue(), python=f"3.{minor}")
    ended = submit_and_wait(controller, job)
    if ended.state != "succeeded":
        assert ended.failure.code == "python_unavailable"
        assert f"needs Python 3.{minor}" in ended.failure.message


def test_what_a_job_leaves_behind_costs_no_place(with_gpus: corral.Client) -> None:
    def deep() -> str:
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        return "dug"

    assert with_gpus.run(deep, cpus=4) == "dug"
    assert with_gpus.run(abs, (-1,), cpus=4) == 1


@pytest.mark.parametrize("way", ["signal", "exception"])
def test_a_job_that_ends_itself_as_if_cancelled_has_failed_once(
    with_gpus: corral.Client, way: str
) -> None:
    def leave(way: str) -> None:
        import signal

        from corral import job

        if way == "exception":
            raise job.Cancelled
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    handle = with_gpus.submit(leave, (way,))
    with pytest.raises(JobFailed):
        handle.result(timeout=60)
    assert handle.status().attempt == 1


def test_a_reader_that_stops_reading_slows_nobody(controller: LiveController) -> None:
    """Its stream fills up and stays full; the job, the controller and other readers go on."""
    import grpc

    from corral.contract import service
    from tests.e2e.raw import bearer

    def chatter() -> int:
        for n in range(40_000):
            print(f"{n:06d} {'x' * 500}")
        return 40_000

    with corral.Client(controller.address, controller.token) as client:
        handle = client.submit(chatter)
        with grpc.insecure_channel(controller.address) as channel:
            stub = service.stub(channel)
            stalled = [
                stub.WatchJobs(pb.WatchRequest(job_id=handle.id), metadata=bearer(controller))
                for _ in range(5)
            ]
            next(stalled[0])
            assert handle.result(timeout=100) == 40_000
            size = sum(len(event.data) for event in handle.events() if isinstance(event, Output))
            assert size == 40_000 * 508
            for one in stalled:
                one.cancel()
