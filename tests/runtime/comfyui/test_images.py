"""ComfyUI's images: what the record says, from the cache or not; refusals and failures."""

from __future__ import annotations

import time

import msgspec
import pytest

from corral.core.images.pipeline import (
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
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui.backend import ComfyUI
from corral.runtime.pipeline.images import pixel_sha256
from tests.fakes.comfyui import FakeComfyUI
from tests.fakes.comfyui_nodes import picture
from tests.runtime.comfyui.rendering import (
    RECORD,
    changed,
    nodes_of,
    only_prompt,
    render,
)


def test_renders_what_the_record_says(server: FakeComfyUI, backend: ComfyUI) -> None:
    rendered = render(backend)

    assert [image.size for image in rendered.images] == [(128, 64)]
    assert rendered.seeds == [7]
    assert rendered.loaded
    assert rendered.info["models"] == {"SDXL/sdxl_1.0.safetensors": ""}
    assert rendered.info["versions"] == {
        "comfyui": "0.7.0",
        "pytorch": "2.9.0+cpu",
        "python": "3.12.3",
    }
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
def test_upscales_each_image_to_whole_blocks(backend: ComfyUI, upscaler: str) -> None:
    images = (picture("one", (50, 30)), picture("two", (64, 64)))

    rendered = render(backend, stage=Upscale(factor=1.5, upscaler=upscaler), images=images)

    assert [image.size for image in rendered.images] == [(72, 40), (96, 96)]


def test_an_identical_record_is_rendered_and_not_taken_from_the_cache(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    first = render(backend)
    server.executed.clear()

    again = render(backend)

    assert server.executed == ["KSampler", "VAEDecode", "PreviewImage"], "the model stays"
    assert pixel_sha256(again.images[0]) == pixel_sha256(first.images[0])
    assert not again.loaded
    one, other = server.submitted
    assert one["prompt_id"] != other["prompt_id"]


def test_an_image_is_enlarged_again_and_not_taken_from_the_cache(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    for _ in range(2):
        server.executed.clear()
        render(backend, stage=Upscale(), images=(picture("one", (32, 32)),))
        assert "ImageScale" in server.executed


@pytest.mark.parametrize("last", [Upscale(upscaler="omega"), ADetailer()])
def test_a_slip_in_the_last_stage_is_found_before_the_first_renders(
    server: FakeComfyUI, backend: ComfyUI, last: Stage
) -> None:
    with pytest.raises(StageFailed) as failed:
        render(backend, changed(stages=(Txt2Img(), last)))

    assert failed.value.code in ("model_missing", "stage_missing")
    assert not server.submitted


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


def code_of(backend: ComfyUI, record: Record = RECORD, stage: Stage | None = None) -> str:
    with pytest.raises(StageFailed) as failed:
        render(backend, record, stage)
    return failed.value.code


def test_a_model_that_is_not_there(server: FakeComfyUI, backend: ComfyUI) -> None:
    with pytest.raises(StageFailed, match=r"no ckpt_name 'other'.*anime") as failed:
        render(backend, changed(model="other"))

    assert failed.value.code == "model_missing"
    assert server.submitted == []


def test_a_bare_diffusion_model_wants_a_workflow(backend: ComfyUI) -> None:
    with pytest.raises(StageFailed, match=r"flux/flux1-dev\.safetensors.*workflow") as failed:
        render(backend, changed(model="flux1-dev"))

    assert failed.value.code == "model_missing"


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


def test_a_failure_that_an_old_server_only_tells(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.own_ids = True
    server.failing["KSampler"] = ("torch.cuda.OutOfMemoryError", "Allocation on device")

    assert code_of(backend) == "out_of_memory"


def test_a_node_that_holds_its_result_back(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.blocking["VAEDecode"] = "no faces"

    with pytest.raises(StageFailed, match=r"VAEDecode \(node 6\).*no faces") as failed:
        render(backend)

    assert failed.value.code == "exception"


@pytest.mark.parametrize(
    ("node", "kind", "message", "code"),
    [
        (
            "CheckpointLoaderSimple",
            "FileNotFoundError",
            "Model in folder 'checkpoints' with filename 'x.safetensors' not found.",
            "model_missing",
        ),
        (
            "CheckpointLoaderSimple",
            "safetensors_rust.SafetensorError",
            "Error while deserializing header: incomplete metadata, file not fully covered",
            "model_missing",
        ),
        (
            "CheckpointLoaderSimple",
            "RuntimeError",
            "ERROR: Could not detect model type of: /models/x.safetensors",
            "model_missing",
        ),
        (
            "CLIPTextEncode",
            "RuntimeError",
            "ERROR: clip input is invalid: None\n\nIf the clip is from a checkpoint loader node "
            "your checkpoint does not contain a valid clip or text encoder model.",
            "model_missing",
        ),
        ("VAEDecode", "FileNotFoundError", "No such file or directory: '/tmp/x'", "exception"),
    ],
)
def test_a_models_file_that_is_no_good(
    server: FakeComfyUI, backend: ComfyUI, node: str, kind: str, message: str, code: str
) -> None:
    server.failing[node] = (kind, message)

    with pytest.raises(StageFailed, match=node) as failed:
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
