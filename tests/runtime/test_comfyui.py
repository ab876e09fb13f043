"""The ComfyUI backend against a server that behaves as the real one was seen to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL.Image import Image

from corral import job
from corral.core.backends import ComfyUIEntry, Workflow
from corral.core.pipeline import (
    ADetailer,
    Hires,
    Img2Img,
    Lora,
    Record,
    Refiner,
    Stage,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline import comfyui
from corral.runtime.pipeline.backend import Rendered, StageFailed
from corral.runtime.pipeline.comfyui import ComfyUI
from corral.runtime.pipeline.comfyui_probe import probe
from corral.runtime.pipeline.images import pixel_sha256
from corral.runtime.pipeline.kinds import open_backend
from tests.fakes.comfyui import FakeComfyUI, Hold
from tests.fakes.comfyui_nodes import picture

RECORD = Record(
    positive="a castle",
    negative="blurry",
    model="sdxl_1.0",
    sampler="DPM++ 2M",
    scheduler="Karras",
    steps=4,
    width=128,
    height=64,
    seed=7,
)


class Told:
    def __init__(self) -> None:
        self.said: list[tuple[float, str]] = []
        self.stop = threading.Event()
        self.on_progress: Callable[[], None] = lambda: None

    def progress(self, fraction: float, message: str = "") -> None:
        self.said.append((fraction, message))
        self.on_progress()

    def cancelled(self) -> bool:
        return self.stop.is_set()


@pytest.fixture
def server() -> Iterator[FakeComfyUI]:
    fake = FakeComfyUI()
    fake.start()
    yield fake
    if fake.hold is not None:
        fake.hold.released.set()
    fake.stop()


@pytest.fixture
def backend(server: FakeComfyUI) -> Iterator[ComfyUI]:
    backend = ComfyUI(url=server.url, patience_s=5.0)
    yield backend
    backend.close()


def render(
    backend: ComfyUI,
    record: Record = RECORD,
    stage: Stage | None = None,
    images: tuple[Image, ...] = (),
    told: Told | None = None,
) -> Rendered:
    return backend.render(stage or Txt2Img(), record, images, told or Told())


def changed(**fields: Any) -> Record:
    return msgspec.structs.replace(RECORD, **fields)


class Rendering(threading.Thread):
    """A render that a test looks at from outside."""

    def __init__(self, backend: ComfyUI, record: Record = RECORD) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self.rendered: Rendered | None = None
        self.error: BaseException | None = None
        self._backend, self._record = backend, record

    def run(self) -> None:
        try:
            self.rendered = render(self._backend, self._record, told=self.told)
        except BaseException as error:
            self.error = error

    def outcome(self) -> Rendered:
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert self.rendered is not None
        return self.rendered


def held(server: FakeComfyUI, step: int = 2) -> Hold:
    server.hold = Hold(step)
    return server.hold


def only_prompt(server: FakeComfyUI) -> dict[str, Any]:
    (one,) = server.submitted
    prompt: dict[str, Any] = one["prompt"]
    return prompt


def nodes_of(graph: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [node["inputs"] for node in graph.values() if node["class_type"] == kind]


# Images --------------------------------------------------------------------------------------


def test_renders_what_the_record_says(server: FakeComfyUI, backend: ComfyUI) -> None:
    rendered = render(backend)

    assert [image.size for image in rendered.images] == [(128, 64)]
    assert rendered.seeds == [7]
    assert rendered.loaded
    assert rendered.info["models"] == {"SDXL/sdxl_1.0.safetensors": ""}
    assert rendered.info["versions"]["comfyui"] == "0.7.0"
    (sampler,) = nodes_of(only_prompt(server), "KSampler")
    assert sampler["sampler_name"] == "dpmpp_2m"
    assert sampler["scheduler"] == "karras"
    assert (sampler["seed"], sampler["steps"], sampler["denoise"]) == (7, 4, 1.0)


def test_an_image_of_a_batch_is_the_image_of_its_own_seed(backend: ComfyUI) -> None:
    both = render(backend, changed(batch_size=2, seed=2**32 - 1))

    alone = render(backend, changed(seed=0))
    assert both.seeds == [2**32 - 1, 0]
    assert pixel_sha256(both.images[1]) == pixel_sha256(alone.images[0])
    assert pixel_sha256(both.images[0]) != pixel_sha256(alone.images[0])


def test_the_seconds_are_the_servers(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.step_s, server.lag_s = 0.1, 0.6
    began = time.monotonic()

    rendered = render(backend)

    assert 0.4 <= rendered.seconds < time.monotonic() - began - 0.5


def test_the_whole_chain(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.packs = True
    hires = Hires(factor=1.5, upscaler="4x-UltraSharp", steps=2)
    first = render(
        backend,
        changed(loras=(Lora("ink", 0.5),), vae="good.vae", clip_skip=2),
        Txt2Img(refiner=Refiner("refiner", 0.5), hires=hires),
    )
    assert first.images[0].size == (192, 96)

    second = render(backend, stage=Img2Img(denoise=0.3), images=tuple(first.images))
    assert second.images[0].size == (192, 96)
    third = render(backend, stage=ADetailer(), images=tuple(second.images))
    assert third.images[0].size == (192, 96)
    fourth = render(backend, stage=Upscale(factor=2), images=tuple(third.images))
    assert fourth.images[0].size == (384, 192)
    assert len({pixel_sha256(one.images[0]) for one in (first, second, third, fourth)}) == 4


@pytest.mark.parametrize("upscaler", ["lanczos", "4x-UltraSharp"])
def test_upscales_each_image_to_the_pixel(backend: ComfyUI, upscaler: str) -> None:
    images = (picture("one", (50, 30)), picture("two", (64, 64)))

    rendered = render(backend, stage=Upscale(factor=1.5, upscaler=upscaler), images=images)

    assert [image.size for image in rendered.images] == [(75, 45), (96, 96)]


# The cache -----------------------------------------------------------------------------------


def test_an_identical_graph_is_answered_from_the_cache(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    first = render(backend)
    server.executed.clear()

    again = render(backend)

    assert server.executed == []
    assert pixel_sha256(again.images[0]) == pixel_sha256(first.images[0])
    assert not again.loaded
    one, other = server.submitted
    assert one["prompt_id"] != other["prompt_id"]


def test_a_cached_file_that_somebody_removed_is_written_again(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    first = render(backend)
    server.outputs.clear()
    server.executed.clear()

    again = render(backend)

    assert pixel_sha256(again.images[0]) == pixel_sha256(first.images[0])
    assert server.executed == ["SaveImage"]


def test_another_model_is_loaded_and_counted(backend: ComfyUI) -> None:
    assert render(backend).loaded
    assert not render(backend, changed(seed=8)).loaded
    assert render(backend, changed(model="anime")).loaded


def test_a_model_stays_while_its_images_are_upscaled(server: FakeComfyUI, backend: ComfyUI) -> None:
    record = changed(stages=(Txt2Img(), Upscale()), loras=(Lora("ink"),))
    first = render(backend, record)
    render(backend, record, Upscale(), tuple(first.images))

    server.executed.clear()
    second = render(backend, msgspec.structs.replace(record, seed=8))

    assert not second.loaded
    assert "LoraLoader" not in server.executed


def test_images_are_upscaled_where_their_model_is_not(backend: ComfyUI) -> None:
    record = changed(model="elsewhere", stages=(Txt2Img(), Upscale()))

    assert render(backend, record, Upscale(), (picture("one", (32, 32)),)).images


# Progress, and the connection ----------------------------------------------------------------


def test_progress_has_the_step_and_only_grows(server: FakeComfyUI, backend: ComfyUI) -> None:
    told = Told()

    render(backend, changed(batch_size=2), told=told)

    fractions = [fraction for fraction, _ in told.said]
    assert fractions == sorted(fractions)
    assert fractions[0] >= 0
    assert fractions[-1] <= 1
    said = [message for _, message in told.said]
    assert "image 1 of 2, loading sdxl_1.0" in said
    assert "image 2 of 2, step 3 of 4" in said


def test_a_large_preview_does_not_end_the_connection(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.preview = bytes(3 << 20)
    told = Told()

    render(backend, told=told)

    assert server.sockets_taken == 1
    assert (told.said[-1][1], len(server.submitted)) == ("", 1)


def test_an_end_that_nobody_heard_is_found_in_the_history(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.deaf = True
    server.drop_sockets()
    hold.released.set()
    server.wait_for_history(1)
    server.deaf = False

    assert len(rendering.outcome().images) == 1
    assert len(server.submitted) == 1


def test_a_connection_that_breaks_does_not_lose_a_running_prompt(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.drop_sockets()
    server.wait_for_socket(2)
    hold.released.set()

    assert len(rendering.outcome().images) == 1
    assert len(server.submitted) == 1
    assert rendering.told.said[-1][0] >= 0.9


def test_an_end_is_announced_before_the_history_has_it(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.lag_s = 0.5

    assert len(render(backend).images) == 1
    assert len(server.submitted) == 1


def test_what_a_restarted_server_forgot_is_submitted_again(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.stop()
    server.hold = None
    server.start()

    rendered = rendering.outcome()
    assert [one["prompt"] for one in server.submitted] == [server.submitted[0]["prompt"]] * 2
    assert len({one["prompt_id"] for one in server.submitted}) == 2
    assert pixel_sha256(rendered.images[0]) == pixel_sha256(render(backend).images[0])


def test_an_uploaded_image_is_brought_again_after_a_restart(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    render(backend, stage=Img2Img(), images=(picture("one", (64, 64)),))
    server.stop()
    server.inputs.clear()
    server.start()

    again = render(backend, stage=Img2Img(), images=(picture("one", (64, 64)),))

    assert len(again.images) == 1


def test_a_server_that_forgets_everything_is_down(
    server: FakeComfyUI, backend: ComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comfyui, "LOOK_S", 0.05)
    server.forgets = True

    with pytest.raises(StageFailed, match="forgot the prompt 3 times") as failed:
        render(backend)

    assert failed.value.code == "backend_down"
    assert len(server.submitted) == 3


def test_a_server_that_is_not_there_is_down(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.stop()
    began = time.monotonic()

    with pytest.raises(StageFailed, match="Start it") as failed:
        render(backend)

    assert failed.value.code == "backend_down"
    assert time.monotonic() - began < 3


def test_a_server_that_does_not_come_back_is_down(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, patience_s=0.5)
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.stop()

    with pytest.raises(StageFailed) as failed:
        rendering.outcome()
    assert failed.value.code == "backend_down"
    backend.close()


def test_a_submission_without_an_answer_is_not_made_twice(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.loses_answers = True

    assert len(render(backend).images) == 1
    assert len(server.submitted) == 1


def test_the_servers_own_prompt_id_counts(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.own_ids = True

    assert len(render(backend).images) == 1


# Refusals and failures -----------------------------------------------------------------------


def code_of(backend: ComfyUI, record: Record = RECORD, stage: Stage | None = None) -> str:
    with pytest.raises(StageFailed) as failed:
        render(backend, record, stage)
    return failed.value.code


def test_a_model_that_is_not_there(server: FakeComfyUI, backend: ComfyUI) -> None:
    with pytest.raises(StageFailed, match=r"no ckpt_name 'other'.*anime") as failed:
        render(backend, changed(model="other"))

    assert failed.value.code == "model_missing"
    assert server.submitted == []


def test_a_model_that_was_removed_meanwhile(server: FakeComfyUI, backend: ComfyUI) -> None:
    render(backend)
    server.files["checkpoints"].remove("SDXL/sdxl_1.0.safetensors")

    with pytest.raises(StageFailed, match="not in") as failed:
        render(backend, changed(seed=8))

    assert failed.value.code == "model_missing"


def test_a_model_that_was_added_meanwhile(server: FakeComfyUI, backend: ComfyUI) -> None:
    render(backend)
    server.files["checkpoints"].append("new.safetensors")

    assert len(render(backend, changed(model="new")).images) == 1


def test_a_name_that_means_two_files(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.files["checkpoints"] += ["a/twin.safetensors", "b\\twin.ckpt"]

    with pytest.raises(StageFailed, match="name it in full") as failed:
        render(backend, changed(model="twin"))
    assert failed.value.code == "model_missing"
    assert len(render(backend, changed(model="b/twin.ckpt [0123abcd]")).images) == 1


def test_a_sampler_that_is_not_there(backend: ComfyUI) -> None:
    assert code_of(backend, changed(sampler="PLMS")) == "stage_missing"


def test_no_model_at_all(backend: ComfyUI) -> None:
    assert code_of(backend, changed(model="")) == "bad_job"


def test_an_answer_that_is_no_json(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.answer = (500, "500 Internal Server Error\n\nServer got itself in trouble")

    with pytest.raises(StageFailed, match="Server got itself in trouble") as failed:
        render(backend)

    assert failed.value.code == "exception"


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("torch.OutOfMemoryError", "Allocation on device", "out_of_memory"),
        ("torch.cuda.OutOfMemoryError", "", "out_of_memory"),
        ("RuntimeError", "CUDA out of memory. Tried to allocate 2 GiB", "out_of_memory"),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:115] DefaultCPUAllocator: can't allocate memory",
            "out_of_memory",
        ),
        ("MemoryError", "", "out_of_memory"),
        ("torch.AcceleratorError", "CUDA error: an illegal memory access", "backend_down"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", "exception"),
    ],
)
def test_a_node_that_raises(
    server: FakeComfyUI, backend: ComfyUI, kind: str, message: str, code: str
) -> None:
    server.failing["KSampler"] = (kind, message)

    with pytest.raises(StageFailed, match="KSampler") as failed:
        render(backend)

    assert failed.value.code == code


def test_detailing_without_its_nodes_names_them(server: FakeComfyUI, backend: ComfyUI) -> None:
    with pytest.raises(StageFailed, match=r"FaceDetailer \(of ComfyUI-Impact-Pack\)") as failed:
        render(backend, stage=ADetailer(), images=(picture("one", (64, 64)),))

    assert failed.value.code == "stage_missing"
    assert server.submitted == []


def test_an_upload_that_was_renamed(server: FakeComfyUI, backend: ComfyUI) -> None:
    ours = (picture("ours", (64, 64)),)
    first = render(backend, stage=Img2Img(), images=ours)
    server.inputs.clear()
    server.names_taken = True

    again = render(backend, stage=Img2Img(), images=ours)

    assert pixel_sha256(again.images[0]) == pixel_sha256(first.images[0])


# Stopping ------------------------------------------------------------------------------------


def test_a_cancel_stops_what_runs_within_two_seconds(server: FakeComfyUI, backend: ComfyUI) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    began = time.monotonic()
    rendering.told.stop.set()

    with pytest.raises(job.Cancelled):
        rendering.outcome()
    assert time.monotonic() - began < 2
    (entry,) = server.wait_for_history(1)
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"


def test_a_cancel_takes_back_what_waits_and_nothing_else(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.own_ids = True  # an old server: a careless interrupt would hit the other
    hold = held(server)
    other = Rendering(backend, changed(seed=1))
    other.start()
    assert hold.reached.wait(10)
    second = ComfyUI(url=server.url)
    ours = Rendering(second)
    ours.start()
    server.wait_for_pending(1)

    ours.told.stop.set()

    with pytest.raises(job.Cancelled):
        ours.outcome()
    assert server.life.pending == []
    hold.released.set()
    assert len(other.outcome().images) == 1
    second.close()


def test_a_cancel_by_signal_stops_the_server_too(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.step_s = 0.05
    told = Told()

    def signalled() -> None:
        if "step 2" in told.said[-1][1]:
            raise job.Cancelled

    told.on_progress = signalled
    with pytest.raises(job.Cancelled):
        render(backend, changed(steps=100), told=told)

    (entry,) = server.wait_for_history(1)
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"


def test_an_interrupt_of_somebody_else_is_no_failure_of_the_graph(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.life.interrupt.set()

    with pytest.raises(StageFailed, match="Somebody interrupted it") as failed:
        rendering.outcome()
    assert failed.value.code == "exception"


# Around it -----------------------------------------------------------------------------------


def test_frees_its_memory_when_asked(server: FakeComfyUI, backend: ComfyUI) -> None:
    backend.free()

    assert server.freed.wait(5)


def test_a_probe_tells_what_there_is(server: FakeComfyUI) -> None:
    found = probe({"type": "comfyui", "url": server.url})

    assert found.models == tuple(server.files["checkpoints"])
    assert found.stages == ("txt2img", "img2img", "upscale")
    assert "lanczos" in found.upscalers
    assert "4x-UltraSharp.pth" in found.upscalers
    assert "dpmpp_2m" in found.samplers
    assert found.versions["comfyui"] == "0.7.0"
    assert found.vram_free_gb == 8.0
    server.packs = True
    assert "adetailer" in probe({"url": server.url}).stages


def test_a_probe_of_nothing_is_a_plain_no(server: FakeComfyUI) -> None:
    server.stop()

    with pytest.raises(StageFailed) as failed:
        probe({"url": server.url})
    assert failed.value.code == "backend_down"


def test_an_entry_of_the_settings_makes_one(server: FakeComfyUI) -> None:
    entry = ComfyUIEntry(url=server.url)

    backend = open_backend(json.loads(msgspec.json.encode(entry.options())))

    assert backend.render(Txt2Img(), RECORD, (), Told()).images
    backend.close()


# A workflow of the user's own ----------------------------------------------------------------

WORKFLOW: dict[str, Any] = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 0, "steps": 2, "cfg": 5.0, "sampler_name": "ddim", "scheduler": "normal",
            "denoise": 1.0, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0],
            "latent_image": ["5", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "anime.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "mine"}},
}  # fmt: skip
MAP: dict[str, str | list[str]] = {
    "positive": "6.text", "negative": "7.text", "seed": "3.seed", "model": "4.ckpt_name",
    "width": "5.width", "height": "5.height",
}  # fmt: skip


@pytest.fixture
def with_workflow(server: FakeComfyUI, tmp_path: Path) -> Iterator[Callable[..., ComfyUI]]:
    opened = []

    def make(nodes: Any = WORKFLOW, **options: Any) -> ComfyUI:
        file = tmp_path / "mine.json"
        file.write_text(nodes if isinstance(nodes, str) else json.dumps(nodes))
        workflow = Workflow(file=str(file), **{"map": MAP, **options})
        opened.append(ComfyUI(url=server.url, workflow=msgspec.to_builtins(workflow)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


def test_a_workflow_gets_what_its_map_names(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    backend = with_workflow(map={**MAP, "seed": ["3.seed"]})

    rendered = render(backend)

    graph = only_prompt(server)
    assert graph["6"]["inputs"]["text"] == "a castle"
    assert graph["3"]["inputs"]["seed"] == 7
    assert graph["3"]["inputs"]["sampler_name"] == "ddim"
    assert graph["4"]["inputs"]["ckpt_name"] == "SDXL/sdxl_1.0.safetensors"
    assert rendered.images[0].size == (128, 64)
    assert rendered.info["workflow"]["file"].endswith("mine.json")
    assert rendered.warnings == [
        "The workflow has its own steps, cfg_scale, clip_skip: the record's are not in its map."
    ]
    upscaled = render(backend, stage=Upscale(), images=tuple(rendered.images))
    assert upscaled.images[0].size == (256, 128)


def test_errors_in_an_accepted_graph_are_a_failure_and_nothing_of_it_runs(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    second = {
        "20": {"class_type": "VAELoader", "inputs": {"vae_name": "gone.safetensors"}},
        "21": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["20", 0]}},
        "22": {"class_type": "SaveImage",
               "inputs": {"images": ["21", 0], "filename_prefix": "other"}},
    }  # fmt: skip
    held(server, 1)
    backend = with_workflow({**WORKFLOW, **second}, output="9")

    with pytest.raises(StageFailed, match=r"VAELoader \(node 20\)") as failed:
        render(backend)

    assert failed.value.code == "model_missing"
    assert len(server.submitted) == 1
    server.wait_for_idle()


@pytest.mark.parametrize(
    ("nodes", "options", "said"),
    [
        ("{", {}, "not JSON"),
        ({"nodes": [], "links": []}, {}, "Export it in ComfyUI"),
        ([], {}, "no graph of nodes"),
        ({"1": {"inputs": {}}}, {}, "node 1 has no class_type"),
        (WORKFLOW, {"map": {**MAP, "prompt": "6.text"}}, "A record can fill: positive"),
        (WORKFLOW, {"map": {**MAP, "steps": "3"}}, "say it as node.input"),
        (WORKFLOW, {"map": {**MAP, "steps": "33.steps"}}, "no node 33. It has 3, 4"),
        (WORKFLOW, {"map": {**MAP, "steps": "3.stepz"}}, "has no input 'stepz'. It has model"),
        (WORKFLOW, {"map": {"positive": "6.text"}}, "lacks 'seed'"),
        (WORKFLOW, {"output": "90"}, "it has none"),
        (WORKFLOW, {"map": {"positive": "6.text", "seed": "3.seed"}}, "sets model, negative"),
        (
            {**WORKFLOW, "10": {"class_type": "MyNode", "inputs": {}}},
            {},
            "lacks its nodes MyNode",
        ),
        ({**WORKFLOW, "10": WORKFLOW["9"]}, {}, "nodes 9, 10 all show images"),
    ],
)
def test_a_workflow_that_cannot_be_used_says_why(
    server: FakeComfyUI,
    with_workflow: Callable[..., ComfyUI],
    nodes: Any,
    options: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(StageFailed) as failed:
        render(with_workflow(nodes, **options))

    assert said in failed.value.message
    assert failed.value.code == "stage_missing"
    assert server.submitted == []


def test_a_workflow_file_that_is_gone(server: FakeComfyUI, tmp_path: Path) -> None:
    backend = ComfyUI(url=server.url, workflow={"file": str(tmp_path / "no.json"), "map": MAP})

    with pytest.raises(StageFailed, match="cannot be read"):
        render(backend)
    backend.close()


def test_a_workflow_may_be_another_stage(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    nodes = {
        **WORKFLOW,
        "10": {"class_type": "LoadImage", "inputs": {"image": "x.png"}},
        "5": {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["4", 2]}},
    }
    places = {name: place for name, place in MAP.items() if name not in ("width", "height")}
    places |= {"image": "10.image", "denoise": "3.denoise"}
    backend = with_workflow(nodes, map=places, stage="img2img")

    rendered = render(backend, stage=Img2Img(0.25), images=(picture("one", (64, 32)),))

    assert rendered.images[0].size == (64, 32)
    assert only_prompt(server)["3"]["inputs"]["denoise"] == 0.25
