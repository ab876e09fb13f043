"""Models for diffusers: found in the worker's folders, loaded, and few of them kept at a time.

Only weights as safetensors are loaded: every other kind of file may run code. Nothing is fetched
from elsewhere.
"""

from __future__ import annotations

import gc
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

from corral import job
from corral.core.images.pipeline import Lora
from corral.digests import Digests
from corral.runtime.files.models import folder_digest, model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.diffusers.errors import meaning

INDEX = "model_index.json"
NO_VAE = ("", "none", "automatic")
ASKS = "requires_aesthetics_score"
"""What the refiner of SDXL says of itself. Its pipeline for text does not know that."""


class LoadedModel:
    """A model in memory: one pipeline for each kind of stage, and their parts are the same."""

    def __init__(
        self, text: Any, diffusers: Any, hashes: dict[str, str], index: dict[str, Any]
    ) -> None:
        self.text = text
        self.own_schedule = dict(text.scheduler.config)
        self.hashes = hashes
        self._notes = [note for name in hashes if (note := _twice(name))]
        self._lora_notes: list[str] = []
        self._diffusers = diffusers
        self._image: Any = None
        self._for_images = {ASKS: True} if index.get(ASKS) else {}
        self._vae_dtype = text.vae.dtype
        self._worn: tuple[tuple[Lora, str], ...] | None = ()
        """None: some of them, after one did not fit."""
        self._encoder: Any = getattr(text, "text_encoder", None)
        self._flat = hasattr(self._encoder, "final_layer_norm")
        self._point_to_norm()

    def _point_to_norm(self) -> None:
        """diffusers looks below `text_model` for the norm after a skipped layer; transformers 5 has
        it one floor higher. Past nn.Module's own registering, or the encoder were its own child."""
        if self._flat:
            self._encoder.__dict__["text_model"] = self._encoder

    @property
    def image(self) -> Any:
        if self._image is None:
            try:
                self._image = self._diffusers.AutoPipelineForImage2Image.from_pipe(
                    self.text, **self._for_images
                )
            except ValueError as error:
                raise StageFailed(
                    "stage_missing",
                    f"diffusers has no img2img for {type(self.text).__name__}.",
                ) from error
            self._image.set_progress_bar_config(disable=True)
        return self._image

    def restore(self) -> None:
        """After a pipeline was left midway: one that widens its VAE had no time to undo that."""
        if self.text.vae.dtype != self._vae_dtype:
            self.text.vae.to(dtype=self._vae_dtype)

    @property
    def warnings(self) -> list[str]:
        return [*self._notes, *self._lora_notes]

    def wear(self, loras: tuple[Lora, ...], digests: Digests) -> dict[str, str]:
        """These LoRAs and no others; their hashes."""
        files = [_lora_file(lora) for lora in loras]
        hashes = [digest_of(file, digests) for file in files]
        worn = tuple(zip(loras, hashes, strict=True))
        if worn != self._worn:  # another one may have taken the place of a file
            self._put_on(loras, files)
            self._worn = worn
        return {lora.name: digest for lora, digest in worn}

    def _put_on(self, loras: tuple[Lora, ...], files: list[Path]) -> None:
        if loras and not hasattr(self.text, "load_lora_weights"):
            raise StageFailed(
                "stage_missing", f"diffusers has no LoRAs for {type(self.text).__name__}."
            )
        changed, self._worn = self._worn != (), None
        if changed:
            self.text.unload_lora_weights()
        names = [f"lora_{place}" for place in range(len(files))]
        for lora, file, name in zip(loras, files, names, strict=True):
            self._load_lora(lora, file, name)
        if names:
            self.text.set_adapters(names, [lora.weight for lora in loras])
        self._lora_notes = [note for lora in loras if (note := _twice(lora.name))]

    def _load_lora(self, lora: Lora, file: Path, name: str) -> None:
        if self._flat:
            del self._encoder.text_model  # by it diffusers would take the encoder for an older one
        try:
            self.text.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=name)
            if not any(name in those for those in self.text.get_list_adapters().values()):
                raise ValueError("None of its weights is for a part that the model has.")
        except (ValueError, RuntimeError, LookupError, OSError) as error:
            if meaning(error) is not None:
                raise
            if "PEFT" in str(error):
                raise StageFailed(
                    "stage_missing",
                    "LoRAs need the package peft, which is not installed on this worker: "
                    "pip install 'corral[diffusers]' there.",
                ) from error
            raise StageFailed(
                "model_missing",
                f"The LoRA {lora.name!r} does not fit the model: {_first_line(error)} "
                f"{_twice(lora.name)}".rstrip(),
            ) from error
        finally:
            self._point_to_norm()


class Shelf:
    """The loaded models, the last used one last. Room is made before the next one is loaded: two
    at a time seldom fit."""

    def __init__(self, torch: Any, diffusers: Any, device: str, dtype: Any, room: int) -> None:
        self._torch, self._diffusers = torch, diffusers
        self._device, self._dtype, self._room = device, dtype, room
        self._held: OrderedDict[tuple[str, str], LoadedModel] = OrderedDict()
        self.digests = Digests()

    def get(self, model: str, vae: str) -> tuple[LoadedModel, bool]:
        """It, and whether it had to be loaded."""
        vae = "" if vae.lower() in NO_VAE else model_name(vae)
        name = (model_name(model), vae)
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name], False
        where = _place(model, "model")
        vae_at = _place(vae, "VAE") if vae else None
        while len(self._held) >= self._room:
            self._held.popitem(last=False)
        self.free()
        self._held[name] = self._load(model, where, vae, vae_at)
        return self._held[name], True

    def clear(self) -> None:
        self._held.clear()
        self.free()

    def restore(self) -> None:
        for loaded in self._held.values():
            loaded.restore()

    def free(self) -> None:
        gc.collect()
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()

    def _load(self, model: str, where: Path, vae: str, vae_at: Path | None) -> LoadedModel:
        hashes = {model: digest_of(where, self.digests)}
        try:
            settings = where if where.is_dir() else self._settings_of(where)
            index = json.loads((settings / INDEX).read_bytes())
            # Parts that a model is without, such as the T5 of Stable Diffusion 3.
            parts: dict[str, Any] = {
                name: None for name, kind in index.items() if kind == [None, None]
            }
            if "safety_checker" in index:
                # It would put black images in the place of some; no record asks for it.
                parts |= {"safety_checker": None, "requires_safety_checker": False}
            if vae_at is not None:
                hashes[vae] = digest_of(vae_at, self.digests)
                parts["vae"] = self._vae(vae_at, settings)
                _same_latents(parts["vae"], settings, vae)
            if where.is_dir():
                pipe = self._diffusers.AutoPipelineForText2Image.from_pretrained(
                    str(where), dtype=self._dtype, use_safetensors=True,
                    local_files_only=True, **_variant(where), **parts,
                )  # fmt: skip
            else:
                pipe = getattr(self._diffusers, index["_class_name"]).from_single_file(
                    str(where), config=str(settings), dtype=self._dtype,
                    local_files_only=True, **parts,
                )  # fmt: skip
                # Its settings may be those of a model for images, as a refiner's are.
                pipe = self._diffusers.AutoPipelineForText2Image.from_pipe(pipe)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            if meaning(error) is not None:
                raise
            raise StageFailed(
                "model_missing", f"diffusers cannot load {model!r}: {_first_line(error)}"
            ) from error
        pipe.set_progress_bar_config(disable=True)
        pipe.to(self._device)
        return LoadedModel(pipe, self._diffusers, hashes, index)

    def _vae(self, where: Path, settings: Path) -> Any:
        kind = self._diffusers.AutoencoderKL
        if where.is_dir():
            return kind.from_pretrained(
                str(where), dtype=self._dtype, use_safetensors=True, local_files_only=True
            )
        _only_safetensors(where)
        return kind.from_single_file(
            str(where), config=str(settings), subfolder="vae", dtype=self._dtype,
            local_files_only=True,
        )  # fmt: skip

    def _settings_of(self, file: Path) -> Path:
        """A file holds weights alone. What else makes the model is in a folder beside it, or in
        that of the model it descends from."""
        _only_safetensors(file)
        beside = file.with_suffix(".config")
        if (beside / INDEX).is_file():
            return beside
        from diffusers.loaders import single_file_utils as known

        kind = known.fetch_diffusers_config(known.load_single_file_checkpoint(str(file)))
        origin = str(kind["pretrained_model_name_or_path"])
        try:
            return job.model(origin)
        except FileNotFoundError:
            raise StageFailed(
                "model_missing",
                f"{file.name} holds weights alone. Put the *.json and *.txt files of {origin} into "
                f"the folder {beside.name} beside it, or a folder {origin} below "
                "worker.model_paths.",
            ) from None


def digest_of(where: Path, digests: Digests) -> str:
    """The sha256 of a model, as workers tell it."""
    if where.is_file():
        return digests.of(str(where))[0]
    files = [str(file) for file in where.rglob("*") if file.is_file()]
    return folder_digest(str(where), ((file, digests.of(file)[0]) for file in files))


def _place(name: str, what: str) -> Path:
    if not name:
        raise StageFailed(
            "bad_job", "The record names no model, and diffusers has none of its own."
        )
    try:
        return job.model(name)
    except FileNotFoundError:
        raise StageFailed(
            "model_missing", f"There is no {what} {name!r} in this worker's worker.model_paths."
        ) from None


def _twice(name: str) -> str:
    """What to say of a name that several models have; empty for all others."""
    found = ["/".join(where.parts[-2:]) for where in job._models(name)]
    if len(found) < 2:
        return ""
    return f"{len(found)} models are called {name!r} here: {found[0]} counts, not {found[1]}."


def _lora_file(lora: Lora) -> Path:
    where = _place(lora.name, "LoRA")
    if where.is_dir():
        files = sorted(where.glob("*.safetensors"))
        if len(files) != 1:
            raise StageFailed(
                "model_missing", f"The LoRA {lora.name!r} is a folder without one .safetensors."
            )
        return files[0]
    _only_safetensors(where)
    return where


def _same_latents(vae: Any, settings: Path, name: str) -> None:
    own = json.loads((settings / "vae" / "config.json").read_bytes())
    has, needs = vae.config.latent_channels, own.get("latent_channels", 4)
    if has != needs:
        raise StageFailed(
            "bad_job",
            f"The VAE {name!r} is of another kind than the model: its latents have {has} "
            f"channels, the model's have {needs}.",
        )


def _only_safetensors(file: Path) -> None:
    if file.suffix.lower() != ".safetensors":
        raise StageFailed(
            "model_missing",
            f"{file.name} may run code when it is loaded, so it is not. Save it as .safetensors.",
        )


def _variant(folder: Path) -> dict[str, str]:
    """Some folders have their weights as `NAME.fp16.safetensors` only."""
    weights = [file.name for file in folder.rglob("*.safetensors")]
    halves = [".fp16." in name for name in weights]
    return {"variant": "fp16"} if halves and all(halves) else {}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]
