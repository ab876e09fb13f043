"""Records in a real runner: stages, images, cards, checkpoints, cancels and failures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from corral.agent.environments.builder import own_packages
from corral.core.images.pipeline import (
    ADetailer,
    Img2Img,
    Record,
    Txt2Img,
    Upscale,
    decode_record,
    digest_of,
)
from corral.runtime.order import Renderer
from corral.runtime.pipeline import images
from tests.fakes.webui import FakeWebUI
from tests.runtime.conftest import StartRunner
from tests.runtime.harness import Controller, Frame, Runner

CASTLE = Record(positive="a castle in the rain", model="sketch", width=64, height=64, seed=7)
CHAIN = (Txt2Img(), Img2Img(), ADetailer(), Upscale(factor=2.0))


@pytest.fixture
def runner(start_runner: StartRunner) -> Runner:
    return start_runner(packages=own_packages())


def begin(runner: Runner, record: Record, *, checkpoint: str = "", **options: Any) -> None:
    backends = [{"type": "sketch", **options}]
    runner.start_work(
        {"type": "pipeline", "record": msgspec.to_builtins(record)},
        checkpoint=checkpoint,
        renderer=Renderer(worker="here", driver="550.1", backends=backends),
    )


def result(frame: Frame) -> dict[str, Any]:
    assert frame["frame"] == "result", frame
    found: dict[str, Any] = json.loads(base64.b64decode(frame["result"]["data"]))
    return found


def render(runner: Runner, record: Record, **more: Any) -> dict[str, Any]:
    begin(runner, record, **more)
    return result(runner.end())


def test_an_image_and_its_card_are_kept(runner: Runner, controller: Controller) -> None:
    outcome = render(runner, CASTLE)
    (made,) = outcome["images"]
    png = controller.artifacts[made["name"]]
    card = json.loads(controller.artifacts["job-1-000.json"])
    assert made["name"] == card["name"] == "job-1-000.png"
    image = Image.open(io.BytesIO(png))
    assert image.size == (64, 64)
    assert made["pixel_sha256"] == card["pixel_sha256"] == images.pixel_sha256(image)
    assert made["file_sha256"] == card["file_sha256"] == hashlib.sha256(png).hexdigest()
    assert outcome["record_digest"] == card["record_digest"] == digest_of(CASTLE)
    assert (card["worker"], card["driver"], card["seed"]) == ("here", "550.1", 7)
    assert card["models"].keys() == {"sketch"}
    assert {"corral", "python", "pillow", "sketch"} <= card["software"].keys()
    assert msgspec.convert(card["record"], Record) == CASTLE


def test_a_controller_that_takes_no_bundles_gets_one_file_after_the_other(
    runner: Runner, controller: Controller
) -> None:
    controller.refuse = [404]
    render(runner, CASTLE)
    assert controller.artifacts.keys() == {"job-1-000.png", "job-1-000.json"}


def test_the_record_is_inside_the_png(runner: Runner, controller: Controller) -> None:
    render(runner, CASTLE)
    text = Image.open(io.BytesIO(controller.artifacts["job-1-000.png"])).text  # type: ignore[attr-defined]
    assert decode_record(text[images.RECORD].encode()) == CASTLE
    assert text[images.DIGEST] == digest_of(CASTLE)


def test_every_stage_is_told(runner: Runner) -> None:
    outcome = render(runner, msgspec.structs.replace(CASTLE, stages=CHAIN))
    assert outcome["images"][0]["size"] == [128, 128]
    assert [one["stage"] for one in outcome["stages"]] == [
        "txt2img",
        "img2img",
        "adetailer",
        "upscale",
    ]
    assert all(0 <= one["seconds"] <= one["slot_seconds"] for one in outcome["stages"])
    told = {name for frame in runner.kinds("metric") for name in frame["values"]}
    assert {"txt2img.seconds", "upscale.slot_seconds"} <= told
    said = [frame["message"] for frame in runner.kinds("progress")]
    assert any(message.startswith("txt2img: step ") for message in said)
    assert said[-1] == "upscale: done"
    assert runner.kinds("progress")[-1]["fraction"] == 1.0


def test_a_warm_runner_loads_a_model_once(runner: Runner) -> None:
    loads = [render(runner, CASTLE)["stages"][0]["loaded"] for _ in range(2)]
    other = render(runner, msgspec.structs.replace(CASTLE, model="m2", backend="sketch"))
    assert [*loads, other["stages"][0]["loaded"]] == [True, False, True]


def test_images_of_one_pass_have_seeds_in_a_row(runner: Runner, controller: Controller) -> None:
    outcome = render(runner, msgspec.structs.replace(CASTLE, batch_size=3))
    assert [one["seed"] for one in outcome["images"]] == [7, 8, 9]
    alone = render(runner, msgspec.structs.replace(CASTLE, seed=9))
    assert outcome["images"][2]["pixel_sha256"] == alone["images"][0]["pixel_sha256"]
    assert len({one["pixel_sha256"] for one in outcome["images"]}) == 3


def test_a_retry_goes_on_with_the_next_stage(runner: Runner, controller: Controller) -> None:
    record = msgspec.structs.replace(CASTLE, stages=CHAIN)
    whole = render(runner, record)
    assert controller.checkpoint is not None  # the last one: three stages were done
    before = runner.kinds("checkpoint")[-1]["sha256"]
    again = render(runner, record, checkpoint=before)
    told = {name for frame in runner.kinds("metric") for name in frame["values"]}
    assert {name.partition(".")[0] for name in told} == {"upscale"}
    assert again["stages"][:3] == whole["stages"][:3]
    assert again["images"][0]["pixel_sha256"] == whole["images"][0]["pixel_sha256"]


def test_a_checkpoint_of_something_else_is_left_alone(runner: Runner) -> None:
    render(runner, msgspec.structs.replace(CASTLE, stages=CHAIN))
    before = runner.kinds("checkpoint")[-1]["sha256"]
    other = msgspec.structs.replace(CASTLE, stages=CHAIN, seed=8)
    again = render(runner, other, checkpoint=before)
    fresh = render(runner, other)
    assert len(again["stages"]) == len(CHAIN)
    assert again["images"][0]["pixel_sha256"] == fresh["images"][0]["pixel_sha256"]


def test_a_cancel_ends_it_between_two_steps(runner: Runner) -> None:
    begin(runner, CASTLE, step_s=30.0)
    runner.until("started", "progress")
    began = time.monotonic()
    runner.cancel()
    frame = runner.end()
    assert frame["failure"]["code"] == "cancelled"
    assert time.monotonic() - began < 15.0, "a step takes twice that"


def test_memory_that_does_not_suffice_is_said(runner: Runner, controller: Controller) -> None:
    large = msgspec.structs.replace(CASTLE, stages=(Txt2Img(), Upscale(factor=8.0)))
    begin(runner, large, vram_gb=0.1)
    failure = runner.end()["failure"]
    assert failure["code"] == "out_of_memory"
    assert failure["type"] == "sketch"
    assert failure["message"].startswith("upscale: ")
    told = [frame["values"] for frame in runner.kinds("metric")]
    assert any("txt2img.seconds" in values for values in told)
    assert any("upscale.failed" in values for values in told)
    assert not controller.artifacts


def test_a_worker_without_the_backend_says_so(runner: Runner) -> None:
    begin(runner, msgspec.structs.replace(CASTLE, backend="webui"))
    assert runner.end()["failure"]["code"] == "stage_missing"
    begin(runner, msgspec.structs.replace(CASTLE, model="sdxl"))  # a real model is not drawn
    assert runner.end()["failure"]["code"] == "stage_missing"


def test_of_two_backends_that_lack_something_both_are_told(runner: Runner) -> None:
    with FakeWebUI() as first, FakeWebUI() as second:
        record = Record(positive="x", model="nobodys", width=64, height=64)
        _order(runner, record, *({"type": "webui", "url": one.url} for one in (first, second)))
        failure = runner.end()["failure"]
    assert failure["code"] == "model_missing"
    assert first.url in failure["message"]
    assert second.url in failure["message"]


def test_where_one_backend_is_down_the_next_renders(runner: Runner) -> None:
    with FakeWebUI() as gone, FakeWebUI() as there:
        gone.die()
        down, up = ({"type": "webui", "url": one.url} for one in (gone, there))
        record = Record(positive="x", model="alpha", width=64, height=64, steps=2)
        _order(runner, record, down, up)
        (told,) = result(runner.end())["warnings"]
        assert gone.url in told
        other = {"type": "comfyui", "url": gone.url}
        _order(runner, msgspec.structs.replace(record, model="nobodys"), up, other)
        failure = runner.end()["failure"]
    assert (failure["code"], failure["type"]) == ("backend_silent", "comfyui"), "it may have it"
    assert there.url in failure["message"]
    assert gone.url in failure["message"]


def _order(runner: Runner, record: Record, *backends: dict[str, str]) -> None:
    runner.start_work(
        {"type": "pipeline", "record": msgspec.to_builtins(record)},
        renderer=Renderer(worker="here", driver="", backends=list(backends)),
    )


def test_a_chain_may_begin_with_an_image(start_runner: StartRunner, tmp_path: Path) -> None:
    runner = start_runner(packages=own_packages(), read_paths=[str(tmp_path)])
    path = tmp_path / "input.png"
    Image.new("RGB", (64, 32), (200, 10, 10)).save(path)
    record = msgspec.structs.replace(CASTLE, stages=(Upscale(factor=1.5),), inputs=("in.png",))
    runner.start_work(
        {"type": "pipeline", "record": msgspec.to_builtins(record)},
        renderer=Renderer(worker="here", driver="", backends=[{"type": "sketch"}]),
        inputs={"in.png": str(path)},
    )
    assert result(runner.end())["images"][0]["size"] == [96, 48]


def test_a_chain_without_an_image_to_begin_with_fails_now(runner: Runner) -> None:
    begin(runner, msgspec.structs.replace(CASTLE, stages=(Upscale(),)))
    assert runner.end()["failure"]["code"] == "bad_job"


@pytest.mark.parametrize("template", ["{job.__class__}", "../{job}", "{nothing}", "{job!r}"])
def test_a_template_names_files_and_nothing_else(runner: Runner, template: str) -> None:
    begin(runner, msgspec.structs.replace(CASTLE, output=template))
    assert runner.end()["failure"]["code"] == "bad_job"


def test_variables_of_the_job_do_not_reach_it(runner: Runner) -> None:
    runner.start_work(
        {"type": "pipeline", "record": msgspec.to_builtins(CASTLE)},
        env={"HTTP_PROXY": "http://127.0.0.1:9"},
        renderer=Renderer(worker="here", driver="", backends=[{"type": "sketch"}]),
    )
    assert runner.end()["frame"] == "result"


@pytest.mark.parametrize(("side", "said"), [(16384, "truncated"), (60000, "decompression bomb")])
def test_an_image_may_be_as_large_as_servers_make_them(side: int, said: str) -> None:
    """A whole one would take long: of these only the head is there."""
    whole = images.to_png(Image.new("L", (8, 8)))
    head = whole[12:16] + struct.pack(">II", side, side) + whole[24:29]

    with pytest.raises(OSError, match=said):
        images.from_bytes(whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:])
