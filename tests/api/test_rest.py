"""REST against a real controller: submitting, looking, following, fetching."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import uuid
import zipfile

import cloudpickle
import pytest

import corral
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController

TELLS = """
import corral.job as job, sys
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
with open("a b.txt", "w") as file:
    file.write("0123456789")
job.artifact("a b.txt")
"""


def test_a_script_from_its_source(rest: Rest) -> None:
    answer = rest("POST", "/jobs", {"script": {"source": "print(6 * 7)"}, "name": "curl"})
    assert answer.status == 202
    (job,) = answer.json["job_ids"]
    assert answer.json["warnings"] == []
    (view,) = answer.json["jobs"]
    assert (view["job_id"], view["queue_class"], view["name"]) == (job, "interactive", "curl")
    assert rest.ended(job)["state"] == "succeeded"
    assert rest("GET", f"/jobs/{job}/output").body == b"42\n"


def test_the_view_is_what_the_command_line_shows(controller: LiveController, rest: Rest) -> None:
    job = rest.submit(TELLS, labels={"room": "attic"}, retries=1)
    view = rest.ended(job)
    assert view["state"] == "succeeded", view
    shown = subprocess.run(
        [CORRAL, "show", job, "--json"], env=controller.environ, capture_output=True, check=True
    )
    assert json.loads(shown.stdout) == view
    assert rest("GET", f"/jobs/{job}/artifacts").json == view["artifacts"]
    why = rest("GET", f"/jobs/{job}/why").json
    assert why["job_id"] == job
    assert "succeeded" in why["summary"]


def test_a_function_and_its_result(rest: Rest) -> None:
    def blob(value: object) -> dict[str, str]:
        return {"data": base64.b64encode(cloudpickle.dumps(value)).decode()}

    call = {"function": blob(pow), "arguments": blob(((2, 10), {}))}
    python = "{}.{}".format(*__import__("sys").version_info[:2])
    answer = rest("POST", "/jobs", {"function": call, "python": python})
    job = answer.json["job_ids"][0]
    assert rest.ended(job)["state"] == "succeeded"
    result = rest("GET", f"/jobs/{job}/result")
    assert cloudpickle.loads(result.body) == 1024
    assert result.headers["x-content-type-options"] == "nosniff"


def test_a_function_names_modules_by_the_digest_of_a_zip(rest: Rest) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as package:
        package.writestr("bucket.py", "def full(x):\n    return x * 2\n")
    data = packed.getvalue()
    inline = {"data": base64.b64encode(data).decode()}
    named = {"sha256": hashlib.sha256(data).hexdigest()}
    call = {
        "function": {"data": base64.b64encode(b"cbucket\nfull\n.").decode()},
        "arguments": {"data": base64.b64encode(cloudpickle.dumps(((21,), {}))).decode()},
    }
    refused = rest("POST", "/jobs", {"function": {**call, "code": inline}})
    assert (refused.status, refused.json["error"]["code"]) == (422, "invalid_job")
    assert "named by its sha256" in refused.json["error"]["message"]
    absent = rest("POST", "/jobs", {"function": {**call, "code": named}})
    assert "is not stored here" in absent.json["error"]["message"]
    assert rest("PUT", "/packages", data).json["sha256"] == named["sha256"]
    python = "{}.{}".format(*__import__("sys").version_info[:2])
    answer = rest("POST", "/jobs", {"function": {**call, "code": named}, "python": python})
    job = answer.json["job_ids"][0]
    assert rest.ended(job)["state"] == "succeeded"
    assert cloudpickle.loads(rest("GET", f"/jobs/{job}/result").body) == 42


def test_a_package_is_uploaded_once_and_named_by_its_digest(rest: Rest) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as package:
        package.writestr("tool.py", "import sys; print(sys.argv[1:])")
    data = packed.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    stored = rest("PUT", f"/packages?sha256={digest}", data)
    assert (stored.status, stored.json) == (201, {"sha256": digest, "size": len(data)})
    assert rest("PUT", f"/packages?sha256={digest[::-1]}", data).status == 422
    script = {"package": {"sha256": digest}, "entry": "tool.py", "argv": ["a", "b c"]}
    job = rest("POST", "/jobs", {"script": script}).json["job_ids"][0]
    assert rest.ended(job)["state"] == "succeeded"
    assert rest("GET", f"/jobs/{job}/output").body == b"['a', 'b c']\n"
    missing = {"script": {"package": {"sha256": "0" * 64}}}
    assert rest("POST", "/jobs", missing).code == "invalid_job"


def test_many_jobs_are_accepted_together_or_not_at_all(rest: Rest) -> None:
    batch = f"herd {uuid.uuid4().hex}"
    good = {"script": {"source": "print(1)"}, "batch": batch, "queue_class": "batch"}
    refused = rest("POST", "/jobs", {"jobs": [good, {**good, "priority": 101}]})
    assert refused.code == "invalid_request"
    assert refused.json["error"]["details"]["at"] == "$.jobs[1].priority"
    assert rest("GET", f"/batches/{batch.replace(' ', '%20')}").code == "batch_not_found"
    assert rest("POST", "/jobs", {"jobs": []}).status == 422
    assert rest("POST", "/jobs", {**good, "jobs": [good]}).code == "invalid_request"
    accepted = rest("POST", "/jobs", {"jobs": [good] * 3}, Idempotency_Key=batch)
    again = rest("POST", "/jobs", {"jobs": [good] * 3}, Idempotency_Key=batch)
    assert accepted.status == again.status == 202
    assert accepted.json["job_ids"] == again.json["job_ids"]
    for job in accepted.json["job_ids"]:
        rest.ended(job)
    view = rest("GET", f"/batches/{batch.replace(' ', '%20')}").json
    assert (view["jobs"], view["states"], view["done"]) == (3, {"succeeded": 3}, 1.0)
    assert batch in [one["batch"] for one in rest("GET", "/batches").json["batches"]]


def test_what_no_worker_could_run_is_refused_or_waits(rest: Rest) -> None:
    wish = {"script": {"source": "1"}, "gpus": 60}
    refused = rest("POST", "/jobs", wish)
    assert (refused.status, refused.code) == (503, "exceeds_all_workers")
    job = refused.json["error"]["job_id"]
    assert rest("GET", f"/jobs/{job}").json["state"] == "rejected"
    waiting = rest("POST", "/jobs", {**wish, "wait": True})
    assert waiting.status == 202
    assert "waits" in waiting.json["warnings"][0]
    assert rest("POST", f"/jobs/{waiting.json['job_ids'][0]}/cancel").json["state"] == "cancelled"


def test_a_batch_is_cancelled_in_one_go(rest: Rest) -> None:
    batch = f"parked/{uuid.uuid4().hex}"
    parked = {"script": {"source": "1"}, "gpus": 60, "queue_class": "batch", "batch": batch}
    ids = rest("POST", "/jobs", {"jobs": [parked] * 4}).json["job_ids"]
    assert rest("GET", f"/batches/{batch}").json["done"] == 0.0
    assert rest("POST", f"/batches/{batch}/cancel").json == {"batch": batch, "cancelled": 4}
    assert {rest("GET", f"/jobs/{job}").json["state"] for job in ids} == {"cancelled"}
    assert rest("POST", f"/batches/{uuid.uuid4().hex}/cancel").code == "batch_not_found"


def test_cancel_and_retry_follow_the_life_of_a_job(rest: Rest) -> None:
    job = rest.submit("print(1)")
    rest.ended(job)
    assert rest("POST", f"/jobs/{job}/cancel").code == "conflict"
    assert rest("POST", f"/jobs/{job}/front").code == "conflict"
    again = rest("POST", f"/jobs/{job}/retry")
    assert (again.status, again.json["retry_of"]) == (202, job)
    assert rest("POST", f"/jobs/{job}/retry?duration=7200&retries=1&from_start=1").status == 202
    refused = rest("POST", f"/jobs/{job}/retry?duration=0.5")
    assert (refused.status, refused.json["error"]["code"]) == (422, "invalid_job")
    assert rest.ended(again.json["job_id"])["state"] == "succeeded"


# --- output, artifacts, ranges -------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(controller: LiveController) -> str:
    rest = Rest(controller)
    job = rest.submit(TELLS)
    assert rest.ended(job)["state"] == "succeeded"
    return job


@pytest.mark.parametrize(
    ("asked", "status", "body", "where"),
    [
        (None, 200, b"0123456789", None),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-999", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_ranges_of_an_artifact(
    rest: Rest, told: str, asked: str | None, status: int, body: bytes, where: str | None
) -> None:
    headers = {"Range": asked} if asked else {}
    answer = rest("GET", f"/jobs/{told}/artifacts/a%20b.txt", **headers)
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers.get("content-range") == where
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''a%20b.txt"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_is_not_there_cannot_be_fetched(rest: Rest, told: str) -> None:
    beyond = rest("GET", f"/jobs/{told}/artifacts/a%20b.txt", Range="bytes=10-")
    assert (beyond.status, beyond.code) == (416, "range_not_satisfiable")
    assert rest("GET", f"/jobs/{told}/artifacts/nothing").code == "blob_not_found"
    assert rest("GET", f"/jobs/{told}/artifacts/../../token").status == 404
    assert rest("GET", f"/jobs/{told}/result").code == "blob_not_found"


def test_output_by_stream_and_range(rest: Rest, told: str) -> None:
    whole = rest("GET", f"/jobs/{told}/output")
    assert sorted(whole.body.splitlines()) == [b"err", b"out"]
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert rest("GET", f"/jobs/{told}/output?stream=stderr").body == b"err\n"
    assert rest("GET", f"/jobs/{told}/output?stream=stdout", Range="bytes=1-2").body == b"ut"
    assert rest("GET", f"/jobs/{told}/output?follow=true").body == whole.body
    assert rest("GET", f"/jobs/{told}/output?attempt=7").body == b""
    assert rest("GET", f"/jobs/{told}/output?stream=stdlog").code == "invalid_request"


def test_ranges_of_a_long_output_fit_together(rest: Rest) -> None:
    job = rest.submit("for n in range(60000): print(n, 'é' * 40)", duration=100)
    assert rest.ended(job)["state"] == "succeeded"
    expected = "".join(f"{n} {'é' * 40}\n" for n in range(60000)).encode()
    step = 1_500_001
    pieces = [
        rest("GET", f"/jobs/{job}/output", Range=f"bytes={start}-{start + step - 1}").body
        for start in range(0, len(expected), step)
    ]
    assert len(pieces) > 3
    assert b"".join(pieces) == expected
    assert rest("GET", f"/jobs/{job}/output", Range="bytes=-7").body == expected[-7:]


# --- events --------------------------------------------------------------------------------------


def messages(body: bytes) -> list[dict[str, str]]:
    """What an EventSource makes of the bytes."""
    found = []
    for block in body.decode().split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        if lines:
            found.append({name: value for name, _, value in lines})
    return found


def test_events_are_resumable_at_every_single_one(rest: Rest, told: str) -> None:
    whole = messages(rest("GET", f"/jobs/{told}/events").body)
    assert [one["event"] for one in whole][:2] == ["state", "state"]
    assert whole[-1]["event"] == "ended"
    for n, event in enumerate(whole[:-1]):
        assert json.loads(event["data"])["cursor"] == event["id"]
        resumed = messages(rest("GET", f"/jobs/{told}/events", Last_Event_ID=event["id"]).body)
        assert resumed == whole[n + 1 :]
        assert messages(rest("GET", f"/jobs/{told}/events?after={event['id']}").body) == resumed
    # 204 tells a browser not to come back.
    assert rest("GET", f"/jobs/{told}/events", Last_Event_ID=whole[-1]["id"]).status == 204
    assert rest("GET", f"/jobs/{told}/events?after=nonsense").status == 422


def test_a_reader_that_reconnects_misses_nothing(rest: Rest, controller: LiveController) -> None:
    """It hangs up after every few events while the job is still writing."""
    import http.client
    from urllib.parse import urlsplit

    job = rest.submit(
        "import time\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(.02)"
    )
    door, seen, last = urlsplit(controller.url), list[dict[str, str]](), ""
    connections = 0
    while not seen or seen[-1]["event"] != "ended":
        connections += 1
        connection = http.client.HTTPConnection(str(door.hostname), door.port, timeout=30)
        headers = {"Authorization": f"Bearer {controller.token}", "Last-Event-ID": last}
        connection.request("GET", f"/jobs/{job}/events", headers=headers)
        answer, block = connection.getresponse(), b""
        while (line := answer.readline()) and block.count(b"\n\n") < 5:
            block += line
        connection.close()
        whole = block[: block.rfind(b"\n\n") + 2]
        seen += messages(whole)
        last = seen[-1]["id"]
    texts = [json.loads(one["data"])["text"] for one in seen if one["event"] == "output"]
    assert "".join(texts) == "".join(f"{n}\n" for n in range(40))
    assert len({one["id"] for one in seen}) == len(seen)
    assert connections > 3


# --- lists ---------------------------------------------------------------------------------------


def test_lists_are_filtered(rest: Rest) -> None:
    mark = uuid.uuid4().hex
    fails = rest.submit("raise SystemExit('torn sock')", name=f"a {mark}", labels={"k": mark})
    works = rest.submit("1", name=f"b {mark}", queue_class="batch", labels={"k": mark, "z": "1"})
    waits = rest.submit("1", name=f"c {mark}", gpus=60, wait=True, user=mark)
    rest.ended(fails)
    rest.ended(works)

    def listed(query: str) -> list[str]:
        answer = rest("GET", f"/jobs?{query}")
        assert answer.status == 200, answer
        return [job["job_id"] for job in answer.json["jobs"]]

    assert listed(f"text={mark}") == [waits, works, fails]
    assert listed(f"text={mark.upper()}&active=true") == [waits]
    assert listed(f"label=k={mark}") == [works, fails]
    assert listed(f"label=k={mark}&label=z") == [works]
    assert listed(f"text={mark}&state=failed") == [fails]
    assert listed(f"text={mark}&state=failed&state=queued") == [waits, fails]
    assert listed(f"text={mark}&class=batch") == [works]
    assert listed(f"user={mark}") == [waits]
    worker = rest("GET", "/workers").json[0]
    assert listed(f"label=k={mark}&worker={worker['name']}") == [works, fails]
    assert listed(f"label=k={mark}&worker=elsewhere") == []
    submitted = rest("GET", f"/jobs/{works}").json["submitted_at"]
    assert listed(f"text={mark}&since={submitted - 0.000001}") == [waits, works]
    assert listed(f"text={mark}&until={submitted - 0.000001}") == [fails]
    assert listed(f"text={mark}&since=2099-01-01T00:00:00%2B00:00") == []
    assert rest("GET", f"/workers/{worker['name']}").json["id"] == worker["id"]
    assert rest("GET", "/workers/nobody").code == "worker_not_found"
    rest("POST", f"/jobs/{waits}/cancel")


def test_pages_stay_as_they_are_while_new_jobs_come(rest: Rest) -> None:
    mark = uuid.uuid4().hex
    parked = {"script": {"source": "1"}, "gpus": 60, "wait": True, "batch": mark}
    ids = rest("POST", "/jobs", {"jobs": [parked] * 7}).json["job_ids"]
    seen, cursor = list[str](), ""
    while True:
        page = rest("GET", f"/jobs?batch={mark}&limit=2&cursor={cursor}").json
        seen += [job["job_id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        cursor = page["next"]
        rest("POST", "/jobs", parked)
        rest("POST", f"/jobs/{ids[0]}/cancel")  # it moves from the living to the ended, once
    assert seen == ids[::-1]
    rest("POST", f"/batches/{mark}/cancel")


def test_the_cluster_at_a_glance(rest: Rest, told: str) -> None:
    status = rest("GET", "/cluster/status").json
    assert (status["status"], status["workers_connected"]) == ("ok", 1)
    assert status["last_24h"]["states"]["succeeded"] >= 1
    assert 0 < status["last_24h"]["success_rate"] <= 1
    assert status["last_24h"]["average_duration_s"] > 0
    assert set(status["queue"]["waiting"]) == {"interactive", "batch"}


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nowhere", None, 404, "not_found"),
        ("DELETE", "/jobs", None, 405, "method_not_allowed"),
        ("GET", "/jobs/zzzzzzzzzzzzzzz", None, 404, "job_not_found"),
        ("GET", "/jobs/%00%F0%9F%90%8E", None, 404, "job_not_found"),
        ("GET", "/jobs/%FF%FE", None, 404, "job_not_found"),
        ("GET", "/jobs/a%2Fb", None, 404, "not_found"),
        ("GET", "/jobs/%27%20OR%201", None, 404, "job_not_found"),
        ("GET", "/jobs/" + "a" * 5000 + "/why", None, 404, "job_not_found"),
        ("GET", "/jobs?limit=0", None, 422, "invalid_request"),
        ("GET", "/jobs?limit=many", None, 422, "invalid_request"),
        ("GET", "/jobs?state=bored", None, 422, "invalid_request"),
        ("GET", "/jobs?class=first", None, 422, "invalid_request"),
        ("GET", "/jobs?sttae=failed", None, 422, "invalid_request"),
        ("POST", "/queue/pause?class=batch", None, 422, "invalid_request"),
        ("GET", "/jobs?since=nan", None, 422, "invalid_request"),
        ("GET", "/jobs?cursor=%00", None, 422, "invalid_request"),
        ("POST", "/jobs", b"{", 422, "invalid_request"),
        ("POST", "/jobs", b"\xff", 422, "invalid_request"),
        ("POST", "/jobs", b"[" * 100_000, 422, "invalid_request"),
        ("POST", "/jobs", [], 422, "invalid_request"),
        ("POST", "/jobs", {}, 422, "invalid_job"),
        ("POST", "/jobs", {"script": {}}, 422, "invalid_job"),
        ("POST", "/jobs", {"script": {"source": "1", "entry": "x.py"}}, 422, "invalid_job"),
        ("POST", "/jobs", {"script": {"source": "1"}, "gpuz": 1}, 422, "invalid_request"),
        ("POST", "/jobs", {"script": {"source": "1"}, "gpu_memory": 0.33}, 422, "invalid_job"),
        ("POST", "/jobs", {"script": {"source": "1"}, "name": "\u001b"}, 422, "invalid_job"),
        ("POST", "/tokens", {"name": "a b", "role": "read"}, 422, "invalid_request"),
        ("POST", "/tokens", {"name": "ab", "role": "king"}, 422, "invalid_request"),
        ("DELETE", "/tokens/nobody", None, 404, "token_not_found"),
    ],
)
def test_every_error_has_the_one_shape(
    rest: Rest, method: str, path: str, body: object, status: int, code: str
) -> None:
    answer = rest(method, path, body)
    assert (answer.status, answer.code) == (status, code)


def test_what_is_wrong_is_told_in_a_sentence(rest: Rest) -> None:
    wrong = rest("POST", "/jobs", {"script": {"source": "1"}, "env": {"A": 1}}).json["error"]
    assert wrong["message"] == (
        "The body is not as it should be at $.env[...]: expected str, got int."
    )
    wrong = rest("GET", "/jobs?active=perhaps").json["error"]
    assert wrong["message"].startswith("query.active is not as it should be: input should be")
    wrong = rest("GET", "/jobs?sttae=failed").json["error"]
    assert wrong["message"].startswith("There is no parameter 'sttae' here; there are state, act")


def test_the_sdk_meets_the_same_errors(rest: Rest, client: corral.Client) -> None:
    told = rest("GET", "/jobs/zzzzzzzzzzzzzzz").json["error"]
    with pytest.raises(corral.JobNotFound) as error:
        client.job("zzzzzzzzzzzzzzz").status()
    raised = error.value.view()["error"]
    assert raised.pop("details").keys() == told.pop("details").keys() == {"correlation_id"}
    assert raised == told
