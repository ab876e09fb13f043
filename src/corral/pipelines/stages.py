"""Which stages run, in the only order there is, and what each is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from corral.core.errors import EmptyStagePlan, StageWithoutImage
from corral.core.images.pipeline import (
    ORDER,
    STAGES,
    Hires,
    Refiner,
    Stage,
    Txt2Img,
)
from corral.pipelines.config import PlanConfig, Section, Txt2ImgSettings
from corral.pipelines.mistakes import invalid


def chain(
    config: PlanConfig, asked: Sequence[str] | None = None, *, inputs: Collection[str] = ()
) -> tuple[Stage, ...]:
    """Those asked for, or those the config has settings for; without the disabled ones."""
    wanted = [one for one in STAGES if _wanted(config, one, asked)]
    if not wanted:
        raise EmptyStagePlan(
            "No stage is left to run. Name one under `stages`, or enable one: "
            f"{', '.join(STAGES)}.",
            details={"path": "stages"},
        )
    first = wanted[0]
    if first != "txt2img" and not inputs:
        raise StageWithoutImage(
            f"{first} works on an image, and nothing makes one before it. Add txt2img to the "
            "stages, or name input images under `inputs`.",
            details={"path": "stages", "stage": first},
        )
    if first == "txt2img" and inputs:
        raise invalid(
            "inputs",
            "the chain begins with txt2img, which takes no image. Leave txt2img out of `stages`, "
            "or the inputs.",
        )
    return tuple(_made(config, one) for one in wanted)


def _wanted(config: PlanConfig, stage: str, asked: Sequence[str] | None) -> bool:
    settings = getattr(config, stage)
    given = settings is not None if asked is None else stage in asked
    return given and (settings is None or settings.enabled is not False)


def _made(config: PlanConfig, stage: str) -> Stage:
    if stage == "txt2img":
        settings = config.txt2img or Txt2ImgSettings()
        return Txt2Img(refiner=_refiner(settings), hires=_hires(settings))
    return ORDER[STAGES.index(stage)](**_given(getattr(config, stage) or Section()))


def _refiner(settings: Txt2ImgSettings) -> Refiner | None:
    asked = settings.refiner
    if asked is None or asked.enabled is False:
        return None
    if not asked.model:
        raise invalid("base.txt2img.refiner", "it has no model. Name one, or disable it.")
    return Refiner(**_given(asked))


def _hires(settings: Txt2ImgSettings) -> Hires | None:
    asked = settings.hires
    return None if asked is None or asked.enabled is False else Hires(**_given(asked))


def _given(settings: Section) -> dict[str, Any]:
    return {
        name: value
        for name in settings.__struct_fields__
        if name != "enabled" and (value := getattr(settings, name)) is not None
    }
