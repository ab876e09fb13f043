"""One word from the client to the worker and back: in lines, in the job itself, in answers."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import corral
from corral import correlation
from corral.contract import corral_pb2 as pb
from corral.contract import service
from corral.core.errors import InvalidJob, JobFailed, JobNotFound
from tests.eventually import eventually
from tests.live import LiveController


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home: Path = tmp_path_factory.mktemp("correlation")
    with LiveController(home, environ={"CORRAL_LOG_FORMAT": "json"}) as started:
        yield started


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(live.address, live.token) as made:
        yield made


def lines(live: LiveController, job: str, last: str, times: int) -> list[dict[str, Any]]:
    """The lines that a search for the job id finds, once the `last` event is there as often as
    said: controller and worker each write their own."""

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in live.log.splitlines() if job in line]
        return lines if sum(line["event"].startswith(last) for line in lines) >= times else []

    return eventually(found, f"{times} lines of {last} for {job}")


def job_env() -> tuple[str, str]:
    return os.environ["CORRAL_JOB_ID"], os.environ["CORRAL_CORRELATION_ID"]


def test_every_line_about_a_job_has_it(live: LiveController, client: corral.Client) -> None:
    job, seen = client.run(job_env, correlation_id="order-66")
    assert seen == "order-66"
    assert client.job(job).status().correlation_id == "order-66"
    found = lines(live, job, "attempt_succeeded", 2)
    assert {line["correlation_id"] for line in found} == {"order-66"}
    # Controller and agent write into one file; which of them is first is nobody's promise.
    assert sorted(line["event"] for line in found) == [
        "attempt_placed",
        *["attempt_started"] * 2,
        *["attempt_succeeded"] * 2,
        "job_submitted",
    ]
    assert {line["attempt"] for line in found if "attempt" in line} == {1}
    assert all(line.keys() >= {"timestamp", "level", "event"} for line in found)


def test_a_map_shares_one_and_its_lines(live: LiveController, client: corral.Client) -> None:
    before = len(live.log.splitlines())
    told = list(client.map(_env_of, range(200)))
    (shared,) = {one for _, one in told}
    assert correlation.usable(shared)
    for job in (told[0][0], told[-1][0]):
        found = lines(live, job, "attempt", 5)
        assert {line["correlation_id"] for line in found} == {shared}
    submitted = [
        line
        for line in map(json.loads, live.log.splitlines()[before:])
        if line["event"] == "jobs_submitted"
    ]
    assert sum(line["count"] for line in submitted) == 200
    assert {job for line in submitted for job in line["jobs"]} == {job for job, _ in told}


def _env_of(number: int) -> tuple[str, str]:
    return job_env()


def test_a_failure_has_a_line_with_its_reason(live: LiveController, client: corral.Client) -> None:
    handle = client.submit(divmod, (1, 0), correlation_id="bad-luck")
    with pytest.raises(JobFailed):
        handle.result()
    found = lines(live, handle.id, "job_failed", 1)
    (failed,) = [line for line in found if line["event"] == "job_failed"]
    assert (failed["level"], failed["code"], failed["attempt"]) == ("warning", "exception", 1)
    assert "by zero" in failed["error"]
    assert failed["correlation_id"] == "bad-luck"


def test_it_survives_a_restart(live: LiveController) -> None:
    with corral.Client(live.address, live.token) as client:
        waiting = client.submit(abs, (1,), gpus=1, correlation_id="patient")
        live.kill()
        live.start()
    with corral.Client(live.address, live.token) as client:
        assert client.job(waiting.id).status().correlation_id == "patient"
        client.job(waiting.id).cancel()
        cancelled = lines(live, waiting.id, "job_cancelled", 1)[-1]
        assert cancelled["correlation_id"] == "patient"


@pytest.mark.parametrize("bad", ["", "two words", "x" * 65, "line\nbreak", 7])
def test_the_sdk_refuses_what_would_break_a_line(client: corral.Client, bad: Any) -> None:
    with pytest.raises(InvalidJob, match="correlation_id"):
        client.submit(abs, (1,), correlation_id=bad)


def test_answers_and_errors_name_it(live: LiveController, client: corral.Client) -> None:
    with pytest.raises(JobNotFound) as missing:
        client.job("nothing-like-it").status()
    assert correlation.usable(missing.value.details["correlation_id"])
    metadata = (("authorization", f"Bearer {live.token}"), (correlation.KEY, "mine"))
    with grpc.insecure_channel(live.address) as channel:
        _, call = service.stub(channel).HealthCheck.with_call(pb.HealthRequest(), metadata=metadata)
    assert dict(call.trailing_metadata())[correlation.KEY] == "mine"


@pytest.mark.parametrize(
    ("header", "told", "kept"),
    [
        ("Corral-Correlation-Id", "abc", True),
        ("X-Request-ID", "from-a-proxy", True),
        ("X-Request-ID", "not usable", False),
    ],
)
def test_http_headers(live: LiveController, header: str, told: str, kept: bool) -> None:
    request = urllib.request.Request(f"{live.url}/metrics", headers={header: told})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as answer:
        answered = answer.headers["Corral-Correlation-Id"]
        assert json.load(answer)["error"]["details"]["correlation_id"] == answered
    assert (answered == told) is kept
    assert correlation.usable(answered)
