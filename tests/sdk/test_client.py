"""Functions and scripts through the synchronous client: values, output, errors, large things."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import grpc.aio
import pytest

import corral
from corral.contract import corral_pb2 as pb
from corral.contract.views import Ended, Output, StateChanged
from corral.core.errors import (
    InvalidJob,
    JobNotFound,
    NoGpuWorkers,
    Unauthorized,
    Unavailable,
    WrongCertificate,
)
from corral.joining import trust
from corral.sdk.client import Client
from corral.sdk.remote_errors import with_source
from corral.sdk.transport.connection import Connection, Door
from tests.e2e import shapes
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
    from corral.contract import corral_pb2 as pb

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


def test_own_code_is_sent_once(
    client: Client, served: Served, orchestrator: Orchestrator, capsys: pytest.CaptureFixture[str]
) -> None:
    """One program asks once whether it is there; another program finds it there."""
    calls = orchestrator.calls
    for _ in range(3):
        assert client.run(shapes.add_offset, (1,)) == 1101
    assert list(client.map(shapes.add_offset, range(3))) == [100, 1101, 2102]
    assert list(client.map(str, [shapes.Counter(1)])) != []
    assert (calls["FindAsset"], calls["PutPackage"]) == (1, 1)
    with Client(served.address, TOKEN) as other:
        assert other.submit(shapes.add_offset, (1,)).result(timeout=60) == 1101
    assert (calls["FindAsset"], calls["PutPackage"]) == (2, 1)
    codes = {job.submission.function.code.sha256 for job in orchestrator.jobs.values()}
    assert len(codes) == 1
    assert codes <= set(orchestrator.blobs)
    assert client.run(shapes.add_offset, (1,), code=()) == 1101
    assert not list(orchestrator.jobs.values())[-1].submission.function.HasField("code")
    assert capsys.readouterr().err.count("sent along") <= 1


def test_what_is_large_shows_how_far_it_is(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = os.urandom(5_500_000)
    assert client.run(len, (data,)) == len(data)
    (tmp_path / "hay").mkdir()
    (tmp_path / "hay" / "main.py").write_text("")
    (tmp_path / "hay" / "data.bin").write_bytes(data)
    client.run_script(tmp_path / "hay")
    client.put(tmp_path / "hay" / "data.bin")
    told: list[int] = []
    client.put(tmp_path / "hay" / "data.bin", progress=told.append)
    assert sum(told) == len(data)
    said = [line.partition("):")[0].rstrip(" …)") for line in capsys.readouterr().err.splitlines()]
    assert said == [
        f"corral: {what} (5.5 MB"
        for what in ("sending len", "packing hay", "sending hay", "sending data.bin")
        for _ in range(2)
    ]


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
    from corral.contract import corral_pb2 as pb

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


def test_artifacts_replace_nothing_unasked(
    client: Client, orchestrator: Orchestrator, tmp_path: Path
) -> None:
    handle = client.submit(len, ("abc",))
    orchestrator.jobs[handle.id].blobs |= {"a.txt": b"a job's", ".bashrc": b"evil"}
    mine = tmp_path / "a.txt"
    mine.write_text("mine")
    for path in (mine, tmp_path):
        with pytest.raises(FileExistsError):
            handle.download("a.txt", path)
    assert mine.read_text() == "mine"
    with pytest.raises(corral.CorralError, match="hidden"):
        handle.download(".bashrc", tmp_path)
    assert not (tmp_path / ".bashrc").exists()
    handle.download("a.txt", mine, overwrite=True)
    assert handle.download("a.txt", mine) == mine, "the same bytes are in nobody's way"
    assert mine.read_text() == "a job's"


def test_a_remote_traceback_opens_no_file_but_the_programs_own(tmp_path: Path) -> None:
    """A worker writes it; reading these would never end, or show what is nobody's code."""
    pipe, private = tmp_path / "pipe", tmp_path / "key.py"
    os.mkfifo(pipe)
    private.write_text("SECRET = 1\n")
    here = with_source.__code__
    named = ("/dev/zero", "/proc/kmsg", str(pipe), str(private), "a\0b", __file__ + "/x")
    told = "".join(f'  File "{path}", line 1, in f\n' for path in named)
    huge = f'  File "{__file__}", line {"9" * 5000}, in f\n'
    own = f'  File "{here.co_filename}", line {here.co_firstlineno}, in g\n'
    assert with_source(told + huge + own).splitlines() == [
        *(told + huge + own).splitlines(),
        "    def with_source(traceback: str) -> str:",
    ]


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
        client.run(len, ("abc",), num_gpus=1)  # type: ignore[call-arg]
    assert not orchestrator.calls


def test_unknown_token(served: Served) -> None:
    with Client(served.address, "wrong") as client, pytest.raises(Unauthorized):
        client.health()


def test_a_home_without_a_token(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_TOKEN", raising=False)
    told = f"There is a controller at {served.address}, but no token for it in {tmp_path}. "
    with (
        Client(served.address, home=tmp_path) as client,
        pytest.raises(Unauthorized, match=f"^{re.escape(told)}Set CORRAL_HOME or CORRAL_TOKEN"),
    ):
        client.health()


def test_refusals_show_little_but_themselves(client: Client, orchestrator: Orchestrator) -> None:
    orchestrator.refuse = NoGpuWorkers("No GPU workers available")
    for ask in (client.run, client.submit):
        with pytest.raises(NoGpuWorkers) as caught:
            ask(len, ("abc",))
        shown = "".join(traceback.format_exception(caught.value))
        assert "During handling" not in shown
        assert "direct cause" not in shown
        assert shown.count("  File ") == 3  # this one, Client and its bridge


def test_the_wrong_door() -> None:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{web.server_port}"
        with (
            Client(address, TOKEN) as client,
            pytest.raises(Unavailable, match=f"{address} does not speak gRPC"),
        ):
            client.health()
        web.shutdown()


def test_views_are_short_in_a_prompt(client: Client) -> None:
    handle = client.submit(bytes, (5000,))
    handle.result()
    assert repr(handle.status()) == f"<JobView {handle.id} 'bytes' succeeded on attic>"
    shown = [repr(event) for event in handle.events()]
    assert "result=<" in shown[-1]
    assert max(map(len, shown)) < 200


def test_nobody_there() -> None:
    with (
        Client("127.0.0.1:1", TOKEN) as client,
        pytest.raises(Unavailable, match=r"No controller at 127.0.0.1:1\. Start one with"),
    ):
        client.run(len, ("abc",))


@pytest.mark.parametrize("known", ["none", "another"])
async def test_an_unknown_certificate_is_not_an_absent_controller(
    tmp_path: Path, known: str
) -> None:
    for one in "ab":
        (tmp_path / one).mkdir()
    (there, key), (other, _) = (trust.kept_certificate(tmp_path / one) for one in "ab")
    server = grpc.aio.server()
    pair = (key.read_bytes(), there.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    pem = other.read_text() if known == "another" else ""
    connection = Connection(Door(f"[::ffff:127.0.0.1]:{port}", TOKEN, None, pem))
    with pytest.raises(WrongCertificate, match="`corral login` with it"):
        await connection.call("HealthCheck", pb.HealthRequest())
    await connection.close()
    await server.stop(0)


def test_a_controller_that_is_slow_to_answer_is_there(served: Served) -> None:
    """On a busy machine the first answer takes a while, and the client never met anybody there."""
    host, _, port = served.address.rpartition(":")

    def relay(here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                there.sendall(data)
        for one in (here, there):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def answer_late() -> None:
        asked, _ = listening.accept()
        time.sleep(1)
        with asked, socket.create_connection((host, int(port))) as real:
            back = threading.Thread(target=relay, args=(real, asked))
            back.start()
            relay(asked, real)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        late = threading.Thread(target=answer_late)
        late.start()
        with Client(f"127.0.0.1:{listening.getsockname()[1]}", TOKEN) as client:
            assert client.health().status == "ok"
        late.join()


def test_the_first_use_may_come_from_many_threads(served: Served) -> None:
    program = (
        "import sys, threading, corral\n"
        "client = corral.Client(sys.argv[1], sys.argv[2])\n"
        "found = []\n"
        "ask = lambda: found.append(client.health().status)\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "[one.start() for one in threads]; [one.join(20) for one in threads]\n"
        "assert found == ['ok'] * 8, found\n"
    )
    command = [sys.executable, "-c", program, served.address, TOKEN]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert ran.returncode == 0, ran.stderr


def test_a_forked_child_is_told_instead_of_hanging(served: Served) -> None:
    program = (
        "import os, sys, corral\n"
        "client = corral.Client(sys.argv[1], sys.argv[2])\n"
        "client.health()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        client.health()\n"
        "    except corral.Unavailable as error:\n"
        "        os._exit(0 if 'spawn' in str(error) else 2)\n"
        "    os._exit(1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, served.address, TOKEN]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    ran = subprocess.run(command, env=environ, capture_output=True, timeout=30)
    assert (ran.returncode, ran.stderr) == (0, b"")  # nor does gRPC talk about forks


def test_the_same_key_is_the_same_map(client: Client) -> None:
    first = list(client.map(abs, [-1, -2, -3], idempotency_key="again"))
    assert list(client.map(abs, [-1, -2, -3], idempotency_key="again")) == first == [1, 2, 3]
