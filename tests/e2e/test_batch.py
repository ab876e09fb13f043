"""A plan by every door, rendered by the built-in renderer on a real worker: images, cards, a
contact sheet, and the same pixels again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import corral
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController

PLAN: dict[str, Any] = {
    "name": "castles",
    "seed": 42,
    "backend": "sketch",
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64, "steps": 2}},
    "prompts": [{"positive": "a castle <b>in</b> [[weather]]", "negative": "blurry"}],
    "matrix": {"slots": {"weather": ["rain", "snow"]}},
    "variants": {"axes": {"cfg_scale": [5, 9]}, "seed_mode": "per_variant", "base_seed": 10},
}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The same as files: a plan, and a pack beside it."""
    (tmp_path / "packs").mkdir()
    pack = {"name": "forts", "prompts": PLAN["prompts"]}
    (tmp_path / "packs" / "castles.json").write_text(json.dumps(pack))
    value = {key: one for key, one in PLAN.items() if key != "prompts"}
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({**value, "pack": "packs/castles.json"}))
    return path


def command(controller: LiveController, *words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [CORRAL, *words], env=controller.environ, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def test_a_plan_becomes_images(client: corral.Client, tmp_path: Path) -> None:
    batch = client.batch(PLAN)
    assert (batch.count, batch.id.startswith("castles-")) == (4, True)
    results = dict(batch.results())
    view = batch.wait(timeout=60)
    assert view.states == {"succeeded": 4}
    assert sum(one.succeeded for one in view.workers) == 4
    assert (view.model_switches, view.left_s) == (0, 0.0)
    jobs = batch.jobs()
    assert [job.job_id for job in jobs] == sorted(results)
    assert [job.labels["row"] for job in jobs] == ["0", "0", "1", "1"]
    assert {job.record for job in jobs} == {None}, "a list is of many"
    record = client.job(jobs[0].job_id).status().record
    assert record is not None
    assert record["positive"] == "a castle <b>in</b> rain"
    images = batch.images()
    assert [one.job_id for one in images] == [job.job_id for job in jobs]
    fetched = batch.download(tmp_path / "out")
    cards = [json.loads(path.read_bytes()) for _, path in fetched if path.suffix == ".json"]
    assert len(cards) == 4
    for card in cards:
        assert card["record"]["job_id"] == card["job"]
        (image,) = results[card["job"]]["images"]
        assert image["pixel_sha256"] == card["pixel_sha256"]
        assert image["seed"] == card["seed"]
    assert len({card["pixel_sha256"] for card in cards}) == 4


def test_the_same_plan_gives_the_same_pixels(client: corral.Client) -> None:
    runs = [client.batch(PLAN) for _ in range(2)]
    assert runs[0].id != runs[1].id
    found = []
    for run in runs:
        results = dict(run.results())
        ordered = [results[job.job_id]["images"][0] for job in run.jobs()]
        found.append([one["pixel_sha256"] for one in ordered])
    assert found[0] == found[1]


def test_the_same_key_makes_no_second_batch(client: corral.Client) -> None:
    first, again = (client.batch(PLAN, key="tonight") for _ in range(2))
    assert first.id == again.id
    assert again.wait(timeout=60).jobs == 4


def test_fetching_goes_on_where_it_was(client: corral.Client, tmp_path: Path) -> None:
    batch = client.batch(PLAN)
    batch.wait(timeout=60)
    told: list[tuple[int, int]] = []
    fetched = batch.download(tmp_path, lambda done, total: told.append((done, total)))
    assert told[-1] == (8, 8)
    stamps = {path: path.stat().st_mtime_ns for _, path in fetched}
    kept, broken, gone = (path for _, path in fetched[:3])
    broken.write_bytes(b"half an ima")
    gone.unlink()
    again = batch.download(tmp_path)
    assert kept.stat().st_mtime_ns == stamps[kept]
    for image, path in again:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == image.file_sha256
    assert not list(tmp_path.glob(".*"))


def test_a_dry_run_prints_records(controller: LiveController, plan: Path) -> None:
    runs = [command(controller, "batch", str(plan), "--dry-run") for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    records = [json.loads(line) for line in runs[0].stdout.splitlines()]
    assert [one["seed"] for one in records] == [10, 11, 10, 11]
    assert {one["pack"] for one in records} == {"forts"}
    assert "Nothing was submitted" in runs[0].stderr
    assert json.loads(command(controller, "jobs", "--pack", "forts", "--json").stdout) == []


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_batch_by_the_command_line(
    controller: LiveController, plan: Path, tmp_path: Path
) -> None:
    done = command(controller, "batch", str(plan))
    name = done.stdout.split(":")[0]
    assert name.startswith("castles-")
    assert "4 of 4 done" in done.stdout
    assert "no model switches" in done.stdout
    listed = json.loads(
        command(controller, "jobs", "--pack", "forts", "--since", "8h", "--json").stdout
    )
    assert {job["batch"] for job in listed} == {name}
    one = command(controller, "show", listed[0]["job_id"]).stdout
    assert "prompt       a castle <b>in</b> snow" in one
    assert "cfg_scale 9" in one or "cfg_scale 5" in one
    shown = command(controller, "show", name).stdout
    assert "4 succeeded" in shown
    assert "no model switches" in shown
    assert json.loads(command(controller, "show", name, "--json").stdout)["jobs"] == 4
    out = tmp_path / "out"
    told = json.loads(
        command(controller, "images", "--batch", name, "--out", str(out), "--json").stdout
    )
    assert len(told["images"]) == 4
    page = Page((out / "index.html").read_text())
    images = [tag for tag in page.tags if tag[0] == "img"]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert len(images) == len(links) == 4
    assert all((out / str(link)).is_file() for link in links)
    assert all(str(one["src"]).startswith("data:image/jpeg;base64,") for _, one in images)
    assert page.text.count("a castle <b>in</b> rain") == 2, "a prompt is text, not markup"
    assert "b" not in [tag for tag, one in page.tags if tag == "b" and one]
    for job in listed:
        assert job["job_id"] in page.text
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe")]


def test_a_rerun_has_the_same_pixels(controller: LiveController, client: corral.Client) -> None:
    batch = client.batch({**PLAN, "variants": None, "matrix": None, "prompts": ["a tower"]})
    batch.wait(timeout=60)
    (job,) = batch.jobs()
    done = command(controller, "rerun", job.job_id, "--worker", "same")
    assert done.stdout.startswith("The same pixels: 1 image")
    told = json.loads(command(controller, "rerun", job.job_id, "--json").stdout)
    assert told["same"] is True
    again = client.job(told["job_id"]).status()
    assert (again.retry_of, again.batch) == (job.job_id, "")
    assert batch.progress().jobs == 1
    other = client.submit(abs, (-1,))
    other.result()
    refused = command(controller, "rerun", other.id, code=1)
    assert "made no images" in refused.stderr


def test_what_is_wrong_with_a_plan_is_said(controller: LiveController, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps({**PLAN, "base": {"txt2img": {"step": 3}}}))
    refused = command(controller, "batch", str(path), "--json", code=2)
    told = json.loads(refused.stderr)["error"]
    assert (told["code"], told["details"]["path"]) == ("invalid_plan", "base.txt2img.step")
    path.write_text("a: [")
    assert "is no YAML" in command(controller, "batch", str(path), code=2).stderr
    assert "no such plan file" in command(controller, "batch", "none.yaml", code=1).stderr


def test_presets_by_every_door(
    controller: LiveController, client: corral.Client, tmp_path: Path
) -> None:
    rest, path = Rest(controller), tmp_path / "base.yaml"
    path.write_text("base:\n  txt2img: {model: sketch, width: 64, height: 64, steps: 2}\n")
    assert "preset: tiny" in command(controller, "presets", "save", "tiny", str(path)).stdout
    assert client.presets.get("tiny") == {
        "txt2img": {"model": "sketch", "width": 64, "height": 64, "steps": 2}
    }
    assert "tiny" in command(controller, "presets").stdout
    assert "steps: 2" in command(controller, "presets", "show", "tiny").stdout
    assert rest("GET", "/presets/tiny").json["value"] == client.presets.get("tiny")
    batch = client.batch({"preset": "tiny", "backend": "sketch", "prompts": ["a moat"]})
    assert batch.wait(timeout=60).states == {"succeeded": 1}
    assert rest("PUT", "/presets/wide", {"txt2img": {"width": 128}}).status == 200
    assert [one["name"] for one in rest("GET", "/presets").json["presets"]] == ["tiny", "wide"]
    assert rest("PUT", "/presets/odd", {"txt2img": {"wide": 1}}).code == "invalid_plan"
    assert rest("DELETE", "/presets/wide").status == 200
    assert rest("GET", "/presets/wide").code == "preset_not_found"
    backup = tmp_path / "kept.tar"
    command(controller, "backup", str(backup))
    assert b"presets/tiny.json" in backup.read_bytes()
    command(controller, "presets", "remove", "tiny")
    assert client.presets.list() == []


def test_presets_come_back_from_a_backup(
    controller: LiveController, client: corral.Client, tmp_path: Path
) -> None:
    base = {"txt2img": {"model": "kept", "steps": 7}}
    client.presets.save("kept", base)
    backup, home = tmp_path / "kept.tar", tmp_path / "new"
    command(controller, "backup", str(backup))
    client.presets.remove("kept")
    command(LiveController(home), "restore", str(backup), "--yes")
    file = home / "presets" / "kept.json"
    assert json.loads(file.read_text()) == base
    assert file.stat().st_mode & 0o077 == 0


def test_a_plan_over_rest(rest: Rest, client: corral.Client) -> None:
    shown = rest("POST", "/batches?dry_run=true", PLAN)
    assert (shown.status, shown.json["batch"], len(shown.json["records"])) == (200, "", 4)
    answers = [rest("POST", "/batches", PLAN, Idempotency_Key="by-rest") for _ in range(2)]
    assert [one.status for one in answers] == [202, 202]
    assert answers[0].json["batch"] == answers[1].json["batch"]
    assert (answers[0].json["jobs"], answers[0].json["records"]) == (4, [])
    name = answers[0].json["batch"]
    client.open_batch(name).wait(timeout=60)
    view = rest("GET", f"/batches/{name}").json
    assert (view["states"], view["model_switches"]) == ({"succeeded": 4}, 0)
    assert sum(one["succeeded"] for one in view["workers"]) == 4
    assert rest("POST", "/batches", {**PLAN, "stages": []}).code == "empty_stage_plan"
    assert rest("POST", "/batches", b"{").code == "invalid_plan"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is another thing there")
def test_ctrl_c_leaves_it_running(controller: LiveController, plan: Path) -> None:
    value = json.loads(plan.read_text())
    value["needs"] = {"worker": "a-machine-that-never-comes"}
    plan.write_text(json.dumps(value))
    process = subprocess.Popen(
        [CORRAL, "batch", str(plan)],
        env=controller.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "waiting" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    _, left = process.communicate(timeout=30)
    assert process.returncode == 0
    assert lines[0].startswith("4 jobs, "), "said before anything was submitted"
    (name,) = (line.split()[2].rstrip(".") for line in lines if line.startswith("Submitted as "))
    assert f"corral show {name} --follow" in left
    view = json.loads(command(controller, "show", name, "--json").stdout)
    assert view["states"] == {"queued": 4}
    assert view["left_s"] is None
    with corral.Client(controller.address, controller.token) as client:
        assert client.open_batch(name).cancel() == 4


ASYNCIO = """
import asyncio, json, sys
import corral

async def main(plan):
    async with corral.AsyncClient() as client:
        assert len(await client.preview(plan)) == 4
        batch = await client.batch(plan)
        seen = [job async for job, _ in batch.results()]
        assert len(set(seen)) == 4
        assert (await batch.progress()).ended

asyncio.run(main(json.loads(sys.argv[1])))
"""


def test_the_same_for_asyncio(controller: LiveController) -> None:
    """In a process of its own: gRPC's asyncio minds other event loops in the same one."""
    command = [sys.executable, "-c", ASYNCIO, json.dumps(PLAN)]
    done = subprocess.run(command, env=controller.environ, capture_output=True, timeout=90)
    assert done.returncode == 0, done.stderr.decode()


def test_a_chain_begins_with_images_of_ones_own(client: corral.Client, tmp_path: Path) -> None:
    for folder, colour in (("a", "red"), ("b", "blue")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (64, 64), colour).save(tmp_path / folder / "photo.png")
    path = tmp_path / "plan.yaml"
    plan = {
        "name": "larger",
        "backend": "sketch",
        "base": {"upscale": {"factor": 2}},
        "stages": ["upscale"],
        "inputs": ["?/photo.png"],
    }
    path.write_text(json.dumps(plan))
    batch = client.batch(path)
    assert batch.wait(timeout=60).states == {"succeeded": 2}
    found = [path for _, path in batch.download(tmp_path / "out") if path.suffix == ".png"]
    colours = []
    for one in found:
        with Image.open(one) as image:
            assert image.size == (128, 128)
            colours.append(image.convert("RGB").getpixel((64, 64)))
    assert colours == [(255, 0, 0), (0, 0, 255)]


def test_a_batch_is_listed_cancelled_and_tried_again_by_its_name(
    controller: LiveController, client: corral.Client, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN, "name": "nobodys", "needs": {"labels": ["not-here"]}}))
    name = command(controller, "batch", "--no-follow", str(path)).stdout.strip()
    (first, *_) = json.loads(command(controller, "batches", "--json").stdout)
    assert (first["batch"], first["states"]) == (name, {"queued": 4})
    assert f"{name}  4     4 queued" in command(controller, "batches", "--limit", "1").stdout
    assert command(controller, "cancel", name).stdout == f"{name}: 4 jobs cancelled\n"
    again = command(controller, "retry", name).stdout.split()
    assert len(again) == 4
    nothing = command(controller, "retry", name)
    assert "Nothing of" in nothing.stderr
    assert json.loads(command(controller, "cancel", name, "--json").stdout) == [
        {"batch": name, "cancelled": 4}
    ]
    refused = command(controller, "cancel", "no-such-batch-or-job", code=1)
    assert "no job's id" in refused.stderr


def test_why_jobs_of_a_batch_failed_is_told_once(
    controller: LiveController, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(b"no image at all")
    base = {"upscale": {"factor": 2}}
    plan = {"backend": "sketch", "base": base, "inputs": ["photo.png"], "batches": 2}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = command(controller, "batch", str(tmp_path / "plan.json"), code=1).stdout
    name = done.split(":")[0]
    told = "2 failed with bad_job: The input 'photo.png' is no image that Pillow knows."
    assert told in done.splitlines()
    assert f"`corral retry {name}` tries them again." in done.splitlines()
    assert "corral images" not in done
    assert told in command(controller, "show", name).stdout.splitlines()
