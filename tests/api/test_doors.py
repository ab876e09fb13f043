"""Closed by default: tokens, hosts, origins, and what an attempt's token is good for."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import corral
from corral.contract import corral_pb2 as pb
from corral.contract import service
from tests.live import LiveController


def ask(
    controller: LiveController, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(controller.url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_health_is_open(controller: LiveController) -> None:
    status, body = ask(controller, "/health")
    assert (status, body["status"]) == (200, "ok")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Host": "127.0.0.1.evil.example:8700"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(
    controller: LiveController, headers: dict[str, str]
) -> None:
    status, body = ask(controller, "/health", **headers)
    assert status == 403
    assert body["error"]["code"] == "forbidden"  # type: ignore[index]


def test_our_own_origin_passes(controller: LiveController) -> None:
    assert ask(controller, "/health", Origin=controller.url)[0] == 200


@pytest.mark.parametrize("method", service.METHODS)
@pytest.mark.parametrize("token", [None, "Bearer wrong", "Basic abc", "Bearer "])
def test_no_method_answers_without_the_token(
    controller: LiveController, method: str, token: str | None
) -> None:
    metadata = (("authorization", token),) if token is not None else ()
    with grpc.insecure_channel(controller.address) as channel:
        call = getattr(service.stub(channel), method)
        with pytest.raises(grpc.RpcError) as refused:
            _answers(call(_request(method), metadata=metadata, timeout=10))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def _answers(answer: object) -> list[object]:
    return list(answer) if isinstance(answer, Iterator) else [answer]


def _request(method: str) -> object:
    if method in ("PutPackage", "PutAsset"):
        return iter([pb.Chunk(data=b"x")])
    descriptor = pb.DESCRIPTOR.services_by_name["Orchestrator"].methods_by_name[method]
    return getattr(pb, descriptor.input_type.name)()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "packages/" + "0" * 64),
        ("GET", "assets/" + "0" * 64),
        ("PUT", "result"),
        ("POST", "artifacts/x"),
        ("PUT", "artifacts/x"),
        ("PUT", "checkpoint"),
        ("GET", "checkpoint"),
    ],
)
def test_transfers_need_the_attempts_own_token(
    controller: LiveController, client: corral.Client, method: str, path: str
) -> None:
    job = client.submit(abs, (-1,))
    job.result()
    where = f"/attempts/{job.id}/1/{path}"
    assert ask(controller, where, method)[0] == 401
    wrong = ask(controller, where, method, Authorization=f"Bearer {controller.token}")
    assert wrong[0] == 403
    other = client.run(_own_token)
    foreign = ask(controller, where, method, Authorization=f"Bearer {other}")
    assert foreign[0] == 403


def _own_token() -> str:
    import os

    return os.environ["CORRAL_TRANSFER_TOKEN"]


def test_an_attempts_token_is_over_with_the_attempt(
    controller: LiveController, client: corral.Client
) -> None:
    job = client.submit(_own_token)
    token = job.result()
    where = f"/attempts/{job.id}/1/artifacts/late.txt"
    status, body = ask(controller, where, "PUT", Authorization=f"Bearer {token}")
    assert status == 409
    assert "is over" in body["error"]["message"]  # type: ignore[index]


def _bundle(line: str, data: str) -> tuple[int, bytes]:
    """Sends a bundle as this attempt, and says how it was answered."""
    import http.client
    import os

    address = os.environ["CORRAL_URL"].partition("://")[2]
    where = f"/attempts/{os.environ['CORRAL_JOB_ID']}/{os.environ['CORRAL_ATTEMPT']}/bundle"
    connection = http.client.HTTPConnection(address, timeout=20)
    headers = {"Authorization": f"Bearer {os.environ['CORRAL_TRANSFER_TOKEN']}"}
    connection.request("PUT", where, f"{line}\n{data}".encode(), headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_small_artifacts_may_come_together(client: corral.Client, tmp_path: Path) -> None:
    line = (
        '[{"name": "a.txt", "size": 3}, {"name": "b/c.txt", "size": 0}, {"name": "d", "size": 2}]'
    )
    job = client.submit(_bundle, (line, "onetw"))
    status, body = job.result()
    assert status == 200, body
    kept = {one.name: (one.size, one.file_sha256) for one in job.artifacts()}
    assert {name: size for name, (size, _) in kept.items()} == {"a.txt": 3, "b/c.txt": 0, "d": 2}
    assert [one["sha256"] for one in json.loads(body)] == [digest for _, digest in kept.values()]
    assert job.download("d", tmp_path).read_text() == "tw"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('[{"name": "a", "size": 4}]', "invalid_job"),
        ('[{"name": "../a", "size": 3}]', "invalid_job"),
        ('[{"name": "a", "size": -3}]', "invalid_request"),
        ("nothing", "invalid_request"),
        (json.dumps([{"name": f"{n}", "size": 0} for n in range(1001)]), "invalid_request"),
    ],
)
def test_a_bundle_that_is_none_keeps_nothing(client: corral.Client, line: str, code: str) -> None:
    job = client.submit(_bundle, (line, "one"))
    status, body = job.result()
    assert (status // 100, json.loads(body)["error"]["code"]) == (4, code)
    assert not job.artifacts()


def test_bad_submissions_get_a_sentence_each(controller: LiveController) -> None:
    blob = pb.BlobRef(data=b"x")
    call = pb.FunctionCall(function=blob, arguments=blob)
    bad = {
        "one of": pb.JobSubmission(),
        "not both": pb.JobSubmission(function=call, gpus=1, gpu_memory=0.5),
        "0.1 to 1.0": pb.JobSubmission(function=call, gpu_memory=0.33),
        "not a number": pb.JobSubmission(function=call, gpu_memory=float("nan")),
        "in tenths": pb.JobSubmission(function=call, gpu_memory=1e-6),
        "path on one machine": pb.JobSubmission(function=call, requirements=["x @ file:///etc"]),
        "7 days": pb.JobSubmission(function=call, duration=1e9),
        "interactive or batch": pb.JobSubmission(function=call, queue_class="urgent"),
        "-100 to 100": pb.JobSubmission(function=call, priority=500),
        "Corral's own": pb.JobSubmission(function=call, env={"CORRAL_TOKEN": "x"}),
        "no requirement": pb.JobSubmission(function=call, requirements=["--index-url=x"]),
        "cannot be printed": pb.JobSubmission(function=call, name="a\x1b[31m"),
        "version like": pb.JobSubmission(function=call, python="snake"),
        "not stored": pb.JobSubmission(
            function=pb.FunctionCall(function=pb.BlobRef(sha256="0" * 64), arguments=blob)
        ),
        "neither a .py": pb.JobSubmission(
            script=pb.ScriptCall(package=blob, entry="../../etc/passwd")
        ),
    }
    with grpc.insecure_channel(controller.address) as channel:
        stub = service.stub(channel)
        metadata = (("authorization", f"Bearer {controller.token}"),)
        for expected, submission in bad.items():
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.SubmitJob(submission, metadata=metadata))
            metadata_of: Any = refused.value
            trailers = dict(metadata_of.trailing_metadata())
            error = json.loads(trailers[service.ERROR_KEY])["error"]
            assert error["code"] == "invalid_job", expected
            assert expected in error["message"]


def test_odd_questions_get_an_answer(controller: LiveController) -> None:
    with grpc.insecure_channel(controller.address) as channel:
        stub = service.stub(channel)
        metadata = (("authorization", f"Bearer {controller.token}"),)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.WatchJobs(pb.WatchRequest(job_id="x", after="-1.-1.-1"), metadata=metadata))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as unknown:
            stub.GetJobStatus(pb.JobRequest(job_id="x" * 100_000), metadata=metadata)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
