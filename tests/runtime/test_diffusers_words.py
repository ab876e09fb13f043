"""What the diffusers backend decides before it needs torch: names, words, digests, errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.core.images.pipeline import Record
from corral.digests import Digests
from corral.runtime.pipeline.backend import StageFailed, times
from corral.runtime.pipeline.diffusers.errors import meaning
from corral.runtime.pipeline.diffusers.models import Shelf, digest_of
from corral.runtime.pipeline.diffusers.prompts import said_of, warnings_of
from corral.runtime.pipeline.diffusers.schedulers import choose


class Tokenizer:
    model_max_length = 3

    def __call__(self, prompt: str, truncation: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=prompt.split())


class Pipe:
    """As much of a pipeline as is asked about the words of a record."""

    tokenizer = Tokenizer()

    def __call__(
        self, prompt: str, guidance_scale: float, negative_prompt: str, callback_on_step_end: object
    ) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["DPM++ 2M Karras", "dpmpp_2m_karras", "k_dpmpp_2m"])
def test_a_sampler_has_many_spellings(name: str) -> None:
    found = choose(name, "karras")
    assert (found.sampler, found.schedule) == ("dpmpp2m", "karras")
    with pytest.raises(StageFailed, match="no sampler 'nobodys'"):
        choose("nobodys", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "backend_down"),
    ],
)
def test_an_error_has_its_meaning(error: Exception, code: str) -> None:
    found = meaning(error)
    assert found is not None
    assert found.code == code


def test_what_nobody_foresaw_has_none() -> None:
    assert meaning(ValueError("some shape")) is None


def test_a_digest_is_read_again_when_the_file_changed(tmp_path: Path) -> None:
    file, digests = tmp_path / "a.safetensors", Digests()
    for content in (b"one", b"longer"):
        file.write_bytes(content)
        assert digest_of(file, digests) == hashlib.sha256(content).hexdigest()
    listed = f"a.safetensors {digest_of(file, digests)}\n"
    assert digest_of(tmp_path, digests) == hashlib.sha256(listed.encode()).hexdigest()


def test_a_model_that_is_not_here_is_missing() -> None:
    with pytest.raises(StageFailed, match="There is no model 'nobodys'") as failed:
        Shelf(None, None, "cpu", None, 1).get("nobodys", "")
    assert failed.value.code == "model_missing"


def test_the_words_of_a_record() -> None:
    record = Record(positive="a castle", negative="a b c d", cfg_scale=5.0)
    assert said_of(Pipe(), record) == {
        "prompt": "a castle",
        "guidance_scale": 5.0,
        "negative_prompt": "a b c d",
    }
    assert warnings_of(Pipe(), record) == ["The negative prompt has 4 tokens; the model reads 3."]
    with pytest.raises(StageFailed, match="has no clip_skip"):
        said_of(Pipe(), Record(positive="x", clip_skip=2))


def test_sides_are_multiples() -> None:
    assert times(100, 1.5, 8) == 144, "cut, not rounded"
