"""Everything that comes in has a limit of its own, and a code of its own beyond it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import grpc
import pytest

import corral
from corral.contract import corral_pb2 as pb
from corral.contract import service
from tests.api.rest import Rest
from tests.live import LiveController

LIMITS = {
    "body_bytes": 20_000,
    "message_bytes": 20_000,
    "document_bytes": 5_000,
    "header_bytes": 4_000,
    "headers": 20,
    "header_s": 0.5,
    "body_s": 0.5,
    "jobs": 3,
    "page": 2,
    "labels": 2,
    "variables": 2,
    "requirements": 2,
    "arguments": 2,
    "models": 2,
    "text": 64,
}
SETTINGS = {
    "CORRAL_LIMITS_STREAMS": "2",
    "CORRAL_LIMITS_RESULT_BYTES": "20000",
    "CORRAL_LIMITS_INPUTS": "2",
    "CORRAL_PACKAGE_LIMIT": "9000",
    "CORRAL_ARTIFACT_LIMIT": "100",
    "CORRAL_ASSET_LIMIT": "12000",
}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("tight")
    with LiveController(home, environ=SETTINGS, limits=LIMITS) as controller:
        yield controller


def script(**more: object) -> dict[str, object]:
    return {"script": {"source": "1"}, **more}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (script(name="x" * 30_000), 413, "body_too_large"),
        ({"jobs": [script()] * 4}, 413, "too_many_jobs"),
        (script(env={"A": "x" * 6000}), 413, "document_too_large"),
        (script(labels={"a": "1", "b": "2", "c": "3"}), 422, "too_many_labels"),
        (script(env={"A": "1", "B": "2", "C": "3"}), 422, "too_many_variables"),
        (script(requirements=["a", "b", "c"]), 422, "too_many_requirements"),
        ({"script": {"source": "1", "argv": ["a", "b", "c"]}}, 422, "too_many_arguments"),
        (script(inputs={name: {"sha256": "0" * 64} for name in "abc"}), 422, "too_many_inputs"),
        (script(name="x" * 65), 422, "text_too_long"),
        (script(labels={"a": "x" * 65}), 422, "text_too_long"),
        (script(env={"A" * 65: ""}), 422, "text_too_long"),
        (script(requirements=["x" * 65]), 422, "text_too_long"),
        (script(worker_labels=["x" * 65]), 422, "text_too_long"),
        (script(models=["x" * 65]), 422, "text_too_long"),
        (script(models=["a", "b", "c"]), 422, "too_many_models"),
    ],
)
def test_submissions(tight: LiveController, body: object, status: int, code: str) -> None:
    answer = Rest(tight)("POST", "/jobs", body)
    assert (answer.status, answer.code) == (status, code)


def test_packages_pages_and_headers(tight: LiveController) -> None:
    rest = Rest(tight)
    assert rest("PUT", "/packages", b"x" * 9001).code == "package_too_large"
    assert rest("PUT", "/packages", b"x" * 9000).status == 201
    assert rest("PUT", "/assets", b"x" * 12_001).code == "asset_too_large"
    announced = {"sha256": "0" * 64, "size": 12_001}
    assert rest("POST", "/assets", announced).code == "asset_too_large"
    assert rest("PUT", "/assets", b"x" * 12_000).status == 201
    for _ in range(3):
        rest.ended(rest.submit("1"))
    assert len(rest("GET", "/jobs?limit=1000").json["jobs"]) == 2
    many = rest("GET", "/health", **{f"X-{n}": "1" for n in range(30)})
    assert (many.status, many.code) == (431, "headers_too_large")
    long = rest("GET", "/health", X_Long="x" * 5000)
    assert (long.status, long.code) == (431, "headers_too_large")


def test_grpc_messages(tight: LiveController) -> None:
    metadata = (("authorization", f"Bearer {tight.token}"),)
    with grpc.insecure_channel(tight.address) as channel, pytest.raises(grpc.RpcError) as refused:
        list(
            service.stub(channel).SubmitJob(pb.JobSubmission(name="x" * 30_000), metadata=metadata)
        )
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def _result(size: int) -> bytes:
    import os

    return os.urandom(size)


def _artifact() -> None:
    import corral.job as job

    with open("big", "wb") as file:
        file.write(b"x" * 101)
    job.artifact("big")


def test_results_and_artifacts_of_jobs(tight: LiveController) -> None:
    with corral.Client(tight.address, tight.token) as client:
        assert len(client.run(_result, (10_000,), output=None)) == 10_000
        wishes = ((_result, (30_000,), "limits.result_bytes"), (_artifact, (), "artifact_limit"))
        for fn, args, told in wishes:
            with pytest.raises(corral.JobFailed) as failed:
                client.run(fn, args, output=None)
            assert told in str(failed.value)


def _half(tight: LiveController, sent: bytes) -> bytes:
    """What the controller says to somebody who sends this much and then nothing."""
    door = urlsplit(tight.url)
    with socket.create_connection((str(door.hostname), door.port), timeout=20) as connection:
        connection.sendall(sent)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


@pytest.mark.parametrize("length", [0, 10, 100])
def test_a_slow_head_is_cut_off(tight: LiveController, length: int) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100
    assert b"request_timeout" in _half(tight, head[:length])


@pytest.mark.parametrize("route", [b"POST /jobs", b"PUT /packages"])
def test_a_slow_body_is_cut_off(tight: LiveController, route: bytes) -> None:
    head = b"%b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nContent-Length: 100\r\n"
    answer = _half(tight, head % (route, tight.token.encode()) + b"\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_an_endless_head_is_cut_off(tight: LiveController) -> None:
    assert b"headers_too_large" in _half(tight, b"GET /health HTTP/1.1\r\nX: " + b"x" * 5000)
    assert b"invalid_request" in _half(tight, b"\x00\x01 nonsense\r\n\r\n")


def test_streams(tight: LiveController) -> None:
    rest = Rest(tight)
    job = rest("POST", "/jobs", script(gpus=60, wait=True)).json["job_ids"][0]
    metadata = (("authorization", f"Bearer {tight.token}"),)
    with grpc.insecure_channel(tight.address) as channel:
        watch = service.stub(channel).WatchJobs
        open_ones = [watch(pb.WatchRequest(job_id=job), metadata=metadata) for _ in range(2)]
        for one in open_ones:
            next(one)
        refused = rest("GET", f"/jobs/{job}/events")
        assert (refused.status, refused.code) == (429, "too_many_streams")
        with pytest.raises(grpc.RpcError) as over:
            list(watch(pb.WatchRequest(job_id=job), metadata=metadata))
        assert over.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        rest("POST", f"/jobs/{job}/cancel")
        assert all(list(one) for one in open_ones)
    assert rest("GET", f"/jobs/{job}/events").status == 200
