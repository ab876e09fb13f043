"""What is shown of a batch: in a terminal, in a line, as a contact sheet; and a rerun's verdict.
What batches do: tests/e2e/test_batch.py."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image

import corral
from corral.cli.images import batch as batching
from corral.cli.images.images import folder_name
from corral.contract import corral_pb2 as pb
from corral.contract.views import BatchView, BatchWorker
from corral.core.errors import ArtifactPruned, InvalidPlan, JobError, Unavailable
from corral.sdk import results
from corral.sdk.images import contact_sheet, plan_files
from corral.sdk.images.batches import AsyncBatchHandle
from tests.cli.test_running import Terminal
from tests.e2e.test_batch import PLAN
from tests.live import LiveController

VIEW = BatchView(
    batch="night-1",
    jobs=24,
    states={"succeeded": 22, "failed": 2},
    done=1.0,
    submitted_at=1000.0,
    ended_at=1060.0,
    seconds=70.0,
    workers=(BatchWorker("attic", 20, 2, 0, 60.0, 3), BatchWorker("cellar", 2, 0, 0, 10.0, 0)),
    model_switches=3,
    left_s=0.0,
)


def test_the_last_lines() -> None:
    told = batching.summary(VIEW)
    assert "night-1: 22 of 24 done, 2 failed in 60 s, 24.0 jobs/min; 3 model switches." in told
    assert "By worker: attic 20, cellar 2." in told
    assert "\x1b" not in batching.summary(BatchView("\x1b[2J", 1, {}, 0.0, 0.0, 0.0, 0.0)), (
        "a name steers no terminal"
    )


def test_a_live_table_and_the_way_back(controller: LiveController, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN | {"needs": {"worker": "nobody-at-all"}}))
    terminal = Terminal(controller.home, "batch", str(plan))
    terminal.until("4 waiting")
    terminal.until("ETA unknown")
    terminal.interrupt()
    terminal.until("corral show castles-")
    assert terminal.wait() == 0
    with corral.Client(home=controller.home) as client:  # others use this controller too
        (batch,) = {
            job.batch for job in client.jobs(active=True) if job.batch.startswith("castles-")
        }
        assert client.open_batch(batch).cancel() == 4
    plan.write_text(json.dumps(PLAN))
    terminal = Terminal(controller.home, "batch", str(plan))
    terminal.until("4 of 4 done")
    terminal.until("no model switches")
    assert terminal.wait() == 0


def test_a_rerun_compares_image_by_image() -> None:
    def made(*pixels: str) -> dict[str, Any]:
        return {"images": [{"pixel_sha256": one} for one in pixels]}

    assert [one["same"] for one in batching.compare(made("a", "b"), made("a", "c"))] == [
        True,
        False,
    ]
    assert [one["same"] for one in batching.compare(made("a"), made("a", "b"))] == [True, False]
    assert [one["same"] for one in batching.compare(made(""), made(""))] == [False]
    assert batching.compare(None, None) == []
    odds: list[Any] = [[], "x", {"images": 5}, {"images": {"a": 1}}, {"images": [5]}]
    for odd in odds:
        assert not any(one["same"] for one in batching.compare(odd, odd)), odd


def test_a_rerun_asks_for_the_same_backend_where_somebody_has_it() -> None:
    def renders(name: str, *tasks: str) -> Any:
        return SimpleNamespace(name=name, id=f"id-{name}", task_types=tasks)

    workers = [renders("attic", "webui", "render"), renders("desk", "comfyui", "render")]
    assert batching.offers(workers, "", "webui")
    assert batching.offers(workers, "attic", "webui")
    assert batching.offers(workers, "id-desk", "comfyui")
    assert not batching.offers(workers, "desk", "webui")
    assert not batching.offers(workers, "", "diffusers")
    assert batching._cannot("desk", "webui").startswith("desk does not render with webui")
    assert batching._backend({"backend": "webui"}) == "webui"
    assert [batching._backend(odd) for odd in (None, {}, {"backend": ["x"]}, {"backend": "x"})] == [
        "", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize("said", [b"\x80\x04.", b"{", b"[" * 100_000, b"9" * 5000])
def test_a_result_that_is_no_json_is_said_so(said: bytes) -> None:
    with pytest.raises(JobError, match="no JSON"):
        results.value_of(said, "pipeline")


@pytest.mark.parametrize(
    ("batch", "folder"), [("night-1", "night-1"), ("../../etc", "_.._etc"), ("..", "batch")]
)
def test_a_batchs_name_is_one_folder(batch: str, folder: str) -> None:
    assert folder_name(batch) == folder


def test_a_contact_sheet_shows_text_as_text(tmp_path: Path) -> None:
    nasty = '<script>alert(1)</script> " onerror="x'
    name = "a&b 'c.png"
    Image.new("RGB", (600, 300), "red").save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    card = {"record": {"positive": nasty, "model": nasty, "seed": 7}, "seed": 8}
    entries = [
        contact_sheet.SheetEntry(tmp_path / name, nasty, nasty, card),
        contact_sheet.SheetEntry(tmp_path / "broken.png", "j2", "w", {"record": "odd"}),
    ]
    page = contact_sheet.write(tmp_path, nasty, entries).read_text()
    assert "<script" not in page
    assert 'onerror="x' not in page
    assert page.count("&lt;script&gt;") >= 4
    assert "<dd>8</dd>" in page, "the image's own seed, not its record's"
    assert 'href="a%26b%20%27c.png"' in page
    assert "default-src 'none'" in page
    assert "2 images" in page
    assert contact_sheet.read_card(tmp_path / "none.png") == {}


def test_a_contact_sheet_tells_what_differs_beside_each_and_the_rest_once(tmp_path: Path) -> None:
    records = [
        {
            "positive": "a",
            "model": "sdxl",
            "steps": steps,
            "stages": [{"stage": "txt2img"}, {"stage": "upscale", "factor": factor}],
        }
        for steps, factor in ((20, 2.0), (30, 4.0))
    ]
    entries = [
        contact_sheet.SheetEntry(tmp_path / f"{n}.png", f"j{n}", "w", {"record": record})
        for n, record in enumerate(records)
    ]
    page = contact_sheet.write(tmp_path, "t", entries).read_text()
    assert "2 images · model sdxl · cfg_scale 7 · size 512 × 512" in page
    for told in ("<dt>steps</dt><dd>20<", "<dt>steps</dt><dd>30<", "upscale.factor</dt><dd>4<"):
        assert told in page
    assert "<dt>model" not in page


def test_a_contact_sheet_opens_nothing_but_pngs(tmp_path: Path) -> None:
    """Pillow has decoders for many a format, and one of them runs a program."""
    Image.new("RGB", (8, 8)).save(tmp_path / "really.gif")
    (tmp_path / "x.png").write_bytes((tmp_path / "really.gif").read_bytes())
    entry = contact_sheet.SheetEntry(tmp_path / "x.png", "j", "w", {})
    assert 'src=""' in contact_sheet.write(tmp_path, "t", [entry]).read_text()


def _sha256(said: bytes | Exception) -> str:
    return hashlib.sha256(said).hexdigest() if isinstance(said, bytes) else "0"


class Artifacts:
    """A connection to a controller with jobs whose workers name their files as they like."""

    def __init__(self, jobs: dict[str, dict[str, bytes | Exception]]) -> None:
        self.jobs = jobs

    async def call(self, method: str, request: Any, **_: Any) -> Any:
        listed = [
            pb.JobView(
                job_id=job,
                workload="pipeline",
                artifacts=[
                    pb.ArtifactView(name=name, file_sha256=_sha256(said))
                    for name, said in files.items()
                ],
            )
            for job, files in reversed(self.jobs.items())
        ]
        return pb.ListJobsReply(jobs=listed)

    async def get(self, job: str, name: str, sha256: str, write: Any) -> None:
        said = self.jobs[job][name]
        if isinstance(said, Exception):
            raise said
        write(said)


async def test_hostile_names_cost_no_other_image(tmp_path: Path) -> None:
    jobs: dict[str, dict[str, bytes | Exception]] = {
        "j1": {"j1-000.png": b"one", "j1-001.png": ArtifactPruned("It is gone.")},
        "j2": {"j1-000.png": b"forged", "x" * 300 + ".png": b"long"},
        "j3": {"j3-000.png": b"three"},
    }
    told: dict[str, str] = {}
    handle = AsyncBatchHandle(cast(Any, Artifacts(jobs)), "b", jobs=3)
    found = await handle.download(
        tmp_path, left_out=lambda one, error: told.update({one.name[:20]: str(error)})
    )
    assert (tmp_path / "j1-000.png").read_bytes() == b"one"
    assert (tmp_path / "j2" / "j1-000.png").read_bytes() == b"forged", "in a folder of its own"
    assert (tmp_path / "j3-000.png").read_bytes() == b"three"
    assert len(found) == 3
    assert sorted(told) == ["j1-001.png", "x" * 20]
    jobs["j1"]["j1-002.png"] = Unavailable("Nobody answers.")
    with pytest.raises(Unavailable):
        await handle.download(tmp_path)


async def test_a_batch_replaces_no_other_file_unasked(tmp_path: Path) -> None:
    name = "j1-000.png"
    handle = AsyncBatchHandle(cast(Any, Artifacts({"j1": {name: b"one"}})), "b", jobs=1)
    (tmp_path / name).write_bytes(b"mine")
    told: list[Exception] = []
    assert not await handle.download(tmp_path, left_out=lambda one, error: told.append(error))
    assert [type(error) for error in told] == [FileExistsError]
    assert (tmp_path / name).read_bytes() == b"mine"
    await handle.download(tmp_path, overwrite=True)
    assert (tmp_path / name).read_bytes() == b"one"


def test_a_contact_sheet_replaces_its_like_alone(tmp_path: Path) -> None:
    page = contact_sheet.write(tmp_path, "t", [])
    contact_sheet.write(tmp_path, "again", [])
    page.write_text("<p>my own page</p>")
    with pytest.raises(FileExistsError):
        contact_sheet.write(tmp_path, "t", [])
    assert page.read_text() == "<p>my own page</p>"


def test_a_plan_file_brings_its_pack_along(tmp_path: Path) -> None:
    (tmp_path / "castles.json").write_text('["a castle", "a moat"]')
    (tmp_path / "named.json").write_text('{"pack_data": {"id": "forts", "prompts": ["x"]}}')
    assert plan_files._pack("castles.json", tmp_path) == {
        "name": "castles",
        "prompts": ["a castle", "a moat"],
    }
    assert plan_files._pack("named.json", tmp_path) == {
        "pack_data": {"id": "forts", "prompts": ["x"]}
    }
    assert plan_files._pack("no such file", tmp_path) == "no such file"
    (tmp_path / "odd.json").write_text("[")
    with pytest.raises(InvalidPlan, match="is no JSON"):
        plan_files._pack("odd.json", tmp_path)
    (tmp_path / "plan.yaml").write_text("name: 2026-05-01\nprompts: [x]\n")
    assert plan_files.read(tmp_path / "plan.yaml")["name"] == "2026-05-01"
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(InvalidPlan, match="key: value"):
        plan_files.read(tmp_path / "list.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
        "a: &a [*a]",
        "".join(" " * depth + "k:\n" for depth in range(2000)),
        "a: " + "9" * 5000,
        "a: .nan",
        "? !!binary aGk=\n: 1",
    ],
    ids=["laughs", "circle", "deep", "digits", "nan", "bytes"],
)
def test_a_plan_file_that_json_cannot_say_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(InvalidPlan):
        plan_files.read(tmp_path / "plan.yaml")
