"""Functions and scripts through the synchronous client: values, output, errors, large things."""

from __future__ import annotations

from pathlib import Path

import pytest

import corral
from corral.core.errors import InvalidJob, JobNotFound, NoGpuWorkers, Unauthorized, Unavailable
from corral.sdk.client import Client
from corral.sdk.views import Ended, Output, StateChanged
from tests.sdk.orchestrator import TOKEN, Orchestrator, Served


def test_run_returns_the_value_and_shows_output(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(a: int, *, b: int) -> int:
        print("größer")
        return a + b

    assert client.run(work, (1,), {"b": 2}) == 3
    assert capsys.readouterr().out == "größer\n"


def test_output_goes_to_a_callable_or_nowhere(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, str]] = []
    client.run(lambda: print("hi"), output=lambda stream, text: seen.append((stream, text)))
    client.run(lambda: print("hi"), output=None)
    assert seen == [("stdout", "hi\n")]
    assert capsys.readouterr().out == ""


def test_submission_says_what_was_asked(client: Client, orchestrator: Orchestrator) -> None:
    client.run(len, ("abc",), gpu_memory=2, retries=3, env={"A": "1"}, name="n", wait=False)
    client.submit(len, ("abc",), gpu_memory=0.3).result(10)
    first, second = (record.submission for record in orchestrator.jobs.values())
    assert (first.gpus, first.gpu_memory, first.retries, dict(first.env)) == (2, 0, 3, {"A": "1"})
    assert (first.queue_class, first.name, first.wait) == ("interactive", "n", False)
    assert (second.queue_class, second.name, second.HasField("wait")) == ("batch", "len", False)
    assert round(second.gpu_memory, 3) == 0.3
    assert first.python.startswith("3.")
    assert first.idempotency_key != second.idempotency_key


def test_failure_keeps_type_message_traceback_and_cause(client: Client) -> None:
    def broken() -> None:
        raise ValueError("bad input")

    with pytest.raises(corral.JobFailed, match="ValueError: bad input") as caught:
        client.run(broken)
    error = caught.value
    assert error.failure.type == "ValueError"
    assert "in broken" in error.remote_traceback
    assert isinstance(error.__cause__, ValueError)
    assert error.details["code"] == "exception"
    assert any("in broken" in note for note in error.__notes__)


def test_cancelled_and_rejected_are_typed(client: Client, served: Served) -> None:
    served.orchestrator.hold = True
    handle = client.submit(len, ("abc",))
    assert handle.cancel().state == "cancelled"
    with pytest.raises(corral.JobCancelled):
        handle.result()
    other = client.submit(len, ("abc",))
    from corral.api import corral_pb2 as pb

    failure = pb.Failure(code="no_gpu_workers", message="No GPU workers available")
    served.call(served.orchestrator.end, other.id, pb.Ended(state="rejected", failure=failure))
    with pytest.raises(corral.JobRejected, match="No GPU workers available"):
        other.result()


def test_large_function_argument_and_result(client: Client, orchestrator: Orchestrator) -> None:
    blob = bytes(range(256)) * 12_000

    def double(data: bytes) -> bytes:
        return data + blob

    assert client.run(double, (blob,)) == blob + blob
    assert orchestrator.calls["PutPackage"] == 2
    assert orchestrator.calls["GetBlob"] == 1


def test_middling_argument_rides_along(client: Client, orchestrator: Orchestrator) -> None:
    assert client.run(len, (bytes(500_000),)) == 500_000
    assert orchestrator.calls["PutPackage"] == 0


def test_handle_events_logs_status_why(client: Client) -> None:
    handle = client.submit(lambda: print("one"))
    handle.result()
    events = list(handle.events())
    assert [type(event) for event in events] == [StateChanged, StateChanged, Output, Ended]
    assert [type(event) for event in handle.events(after=events[1].cursor)] == [Output, Ended]
    assert "".join(handle.logs()) == "one\n"
    assert "".join(handle.logs(follow=False)) == "one\n"
    assert handle.status().state == "succeeded"
    assert handle.why().workers[0].reason == "needs 2 GPUs, has 1"
    assert client.job(handle.id).result() is None
    assert handle.retry().status().retry_of == handle.id


def test_logs_until_now_of_a_live_job(client: Client, served: Served) -> None:
    from corral.api import corral_pb2 as pb

    served.orchestrator.hold = True
    handle = client.submit(len, ("abc",))
    for piece in (b"gr", "ö".encode()[:1], "ö".encode()[1:]):
        output = pb.Output(stream="stdout", data=piece)
        served.call(served.orchestrator.emit, handle.id, output=output)
    assert "".join(handle.logs(follow=False)) == "grö"


def test_result_timeout_leaves_the_job_running(client: Client, served: Served) -> None:
    served.orchestrator.hold = True
    handle = client.submit(len, ("abc",))
    with pytest.raises(TimeoutError, match="it goes on"):
        handle.result(timeout=0.05)
    served.call(served.orchestrator.release)
    assert handle.result() == 3


def test_artifacts(client: Client, orchestrator: Orchestrator, tmp_path: Path) -> None:
    handle = client.submit(len, ("abc",))
    orchestrator.jobs[handle.id].blobs["plots/a.png"] = bytes(5000)
    assert [artifact.name for artifact in handle.artifacts()] == ["plots/a.png"]
    orchestrator.cut_after = 2
    assert handle.download("plots/a.png", tmp_path) == tmp_path / "a.png"
    assert (tmp_path / "a.png").read_bytes() == bytes(5000)
    assert [path.name for path in tmp_path.glob(".*.part")] == []


def test_scripts(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "hello.py"
    script.write_text("import sys; print('hello', *sys.argv[1:]); sys.exit(len(sys.argv) - 2)")
    client.run_script(script, ["you"])
    assert capsys.readouterr().out == "hello you\n"
    with pytest.raises(corral.JobFailed) as caught:
        client.submit_script(script, ["a", "b", "c"]).result()
    assert caught.value.details["exit_code"] == 2


def test_looking_around(client: Client) -> None:
    ids = [client.submit(len, ("abc",), batch="b").id for _ in range(3)]
    assert [job.job_id for job in client.jobs(batch="b", limit=2)] == ids[:0:-1]
    assert client.workers() == []
    assert client.health().status == "ok"
    with pytest.raises(JobNotFound):
        client.job("nope").status()


def test_refusals_are_the_errors_of_core(client: Client, orchestrator: Orchestrator) -> None:
    refusal = NoGpuWorkers("No GPU workers available", job_id="x", details={"é": "ü"})
    orchestrator.refuse = refusal
    with pytest.raises(NoGpuWorkers) as caught:
        client.run(len, ("abc",))
    assert caught.value.view() == refusal.view()


def test_nothing_is_sent_when_invalid(client: Client, orchestrator: Orchestrator) -> None:
    with pytest.raises(InvalidJob):
        client.run(len, ("abc",), gpu_memory=0.25)
    with pytest.raises(TypeError, match="Did you mean 'gpus'"):
        client.run(len, ("abc",), gpu=1)  # type: ignore[call-arg]
    assert not orchestrator.calls


def test_unknown_token(served: Served) -> None:
    with Client(served.address, "wrong") as client, pytest.raises(Unauthorized):
        client.health()


def test_nobody_there() -> None:
    with (
        Client("127.0.0.1:1", TOKEN) as client,
        pytest.raises(Unavailable, match=r"No controller at 127.0.0.1:1\. Start one with"),
    ):
        client.run(len, ("abc",))
