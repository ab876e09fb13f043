"""Learning through every door: SDK, REST and command line, with images that are really drawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.core.errors import Conflict, InvalidPlan, JobNotFound, LearningRunNotFound
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController

PLAN: dict[str, Any] = {
    "name": "cfg",
    "variable": "txt2img.cfg_scale",
    "values": [5, 7.5],
    "images": 2,
    "seed": 42,
    "prompt": "a castle, rain",
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
}


@pytest.fixture(scope="module")
def result(controller: LiveController) -> dict[str, Any]:
    seen: list[tuple[int, int]] = []
    with corral.Client(controller.address, controller.token) as client:
        found = client.learning.run(PLAN, lambda done, jobs: seen.append((done, jobs)))
    assert seen[-1] == (4, 4)
    return found


def command(controller: LiveController, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [CORRAL, *words], env=controller.environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done
    return done.stdout if not code else done.stderr


def test_a_run_by_the_sdk(client: corral.Client, result: dict[str, Any]) -> None:
    assert [step["value"] for step in result["steps"]] == [5, 7.5]
    assert [step["images"] for step in result["steps"]] == [2, 2]
    first, second = (step["jobs"] for step in result["steps"])
    assert [job["seeds"] for job in first] == [job["seeds"] for job in second] == [[42], [43]]
    records = list(client.learning.records(run="cfg"))
    assert {one["job_id"] for one in records} == {job["job_id"] for job in [*first, *second]}
    for one in records:
        assert one["backend"] == "sketch"
        assert [stage["stage"] for stage in one["stages"]] == ["txt2img"]
        stored = {artifact.name: artifact for artifact in client.job(one["job_id"]).artifacts()}
        for image in one["images"]:
            assert stored[image["name"]].file_sha256 == image["file_sha256"]
            assert len(image["pixel_sha256"]) == 64
    with pytest.raises(LearningRunNotFound):
        client.learning.show("nothing")
    with pytest.raises(InvalidPlan, match="variable"):
        client.learning.start({**PLAN, "name": "odd", "variable": "cfg"})
    assert "cfg" in [run.name for run in client.learning.runs()]


def test_ratings_by_every_door(
    client: corral.Client, controller: LiveController, result: dict[str, Any]
) -> None:
    rest = Rest(controller)
    jobs = [job["job_id"] for step in result["steps"] for job in step["jobs"]]
    one, two, three = jobs[:3]
    assert client.learning.rate(one, 2).rating == 2
    assert client.learning.rate(one, 4, "good light").note == "good light"
    answer = rest("POST", f"/jobs/{two}/rating", {"rating": 5})
    assert (answer.status, answer.json["rating"]) == (200, 5)
    assert rest("POST", f"/jobs/{two}/rating", {"rating": 9}).status == 422
    assert rest("POST", f"/jobs/{two}/rating", {"stars": 4}).status == 422
    assert "rated 1 of 5" in command(controller, "rate", three, "1", "--note", "blurry")
    assert json.loads(command(controller, "rate", three, "3", "--json"))["rating"] == 3
    command(controller, "rate", three, "6", code=2)
    ratings = {line["job_id"]: line["rating"] for line in client.learning.records(run="cfg")}
    assert [ratings[job]["rating"] for job in (one, two, three)] == [4, 5, 3]
    step = client.learning.show("cfg").result["steps"][0]  # type: ignore[index]
    assert (step["mean_rating"], step["rated"]) == (4.5, 2)
    python = client.submit(abs, (-1,))
    assert python.result() == 1
    with pytest.raises(Conflict, match="makes no images"):
        client.learning.rate(python.id, 3)
    with pytest.raises(JobNotFound):
        client.learning.rate("z" * 15, 3)


def test_lines_by_every_door(
    client: corral.Client, controller: LiveController, result: dict[str, Any], tmp_path: Path
) -> None:
    expected = list(client.learning.records(run="cfg"))
    assert len(expected) == 4
    answer = Rest(controller)("GET", "/learnings?run=cfg")
    assert [json.loads(line) for line in answer.body.splitlines()] == expected
    assert Rest(controller)("GET", "/learnings?run=nobody").body == b""
    assert Rest(controller)("GET", "/learnings?since=yesterday").code == "invalid_request"
    file = tmp_path / "all.jsonl"
    command(controller, "learnings", "--run", "cfg", "--export", str(file))
    assert [json.loads(line) for line in file.read_bytes().splitlines()] == expected
    printed = command(controller, "learnings", "--run", "cfg", "--export", "-")
    assert [json.loads(line) for line in printed.splitlines()] == expected
    assert json.loads(command(controller, "learnings", "--run", "cfg", "--json"))
    table = command(controller, "learnings", "--since", "1h", "--run", "cfg")
    assert expected[0]["job_id"] in table
    assert expected[0]["job_id"] not in command(controller, "learnings", "--until", "1h")


def test_a_run_by_the_command_line(
    controller: LiveController, result: dict[str, Any], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps(PLAN))  # JSON is YAML
    told = json.loads(command(controller, "learn", str(plan), "--json"))
    jobs = [job["job_id"] for step in told["result"]["steps"] for job in step["jobs"]]
    assert jobs == [job["job_id"] for step in result["steps"] for job in step["jobs"]], "the same"
    table = command(controller, "learn", "--show", "cfg").splitlines()
    assert table[0].split()[:2] == ["TXT2IMG.CFG_SCALE", "DONE"]
    assert [line.split()[:2] for line in table[1:]] == [["5", "2"], ["7.5", "2"]]
    assert "cfg" in command(controller, "learn", "--list")
    plan.write_text(json.dumps({**PLAN, "name": "other"}))
    assert "TXT2IMG" in command(controller, "learn", str(plan), "--dry-run")
    assert "other" not in command(controller, "learn", "--list")
    plan.write_text(json.dumps({**PLAN, "images": 3}))
    assert "another plan" in command(controller, "learn", str(plan), code=1)
    command(controller, "learn", code=2)
    command(controller, "learn", str(tmp_path / "none.yaml"), code=1)


def test_a_run_by_rest(controller: LiveController, result: dict[str, Any]) -> None:
    rest = Rest(controller)
    answer = rest("POST", "/learning-runs", PLAN)
    assert (answer.status, answer.json["name"]) == (202, "cfg")
    shown = rest("GET", "/learning-runs/cfg").json
    assert [step["step"] for step in shown["result"]["steps"]] == [0, 1]
    assert "cfg" in [one["name"] for one in rest("GET", "/learning-runs").json]
    dry = rest("POST", "/learning-runs?dry_run=true", {**PLAN, "name": "dry"})
    assert (dry.status, dry.json["jobs"], dry.json["batch"]) == (200, 4, "")
    assert rest("GET", "/learning-runs/dry").code == "learning_run_not_found"
    assert rest("POST", "/learning-runs", {"name": "x"}).status == 422
