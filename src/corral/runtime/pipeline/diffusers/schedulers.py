"""The samplers and schedules of a record, as diffusers knows them: schedulers and their options.

What it does not have is said; nothing is ever replaced by something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from corral.runtime.pipeline import backend
from corral.runtime.pipeline.backend import StageFailed, automatic

SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": ("EulerDiscreteScheduler", {}),
    "eulera": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "lms": ("LMSDiscreteScheduler", {}),
    "dpm2": ("KDPM2DiscreteScheduler", {}),
    "dpm2a": ("KDPM2AncestralDiscreteScheduler", {}),
    "dpmpp2m": ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver++"}),
    "dpmpp2msde": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "ddim": ("DDIMScheduler", {}),
    "ddpm": ("DDPMScheduler", {}),
    "plms": ("PNDMScheduler", {"skip_prk_steps": True}),
    "unipc": ("UniPCMultistepScheduler", {}),
    "deis": ("DEISMultistepScheduler", {}),
    "lcm": ("LCMScheduler", {}),
}
OTHER_NAMES = {"": "euler", "eulerancestral": "eulera", "dpm2ancestral": "dpm2a", "pndm": "plms"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "normal": {},
    "karras": {"use_karras_sigmas": True},
    "exponential": {"use_exponential_sigmas": True},
    "beta": {"use_beta_sigmas": True},
    "sgmuniform": {"timestep_spacing": "trailing"},
}
OTHER_SCHEDULES = {"uniform": "normal", "trailing": "sgmuniform"}
SPACING = {"leading": ("ddim", "ddpm", "plms", "lcm")}
"""Where the steps lie: said here and not left to the model's own settings, so that a model means
the same as a folder and as a file. `linspace` for all others."""
FLOWS = {
    "euler": "FlowMatchEulerDiscreteScheduler",
    "heun": "FlowMatchHeunDiscreteScheduler",
}
FLOW_SCHEDULES: dict[str, dict[str, Any]] = {
    "normal": {},
    "simple": {},
    **{name: SCHEDULES[name] for name in ("karras", "exponential", "beta")},
}
"""Models that are trained by flow matching have others. `normal` and `simple` are the even steps
that diffusers takes for such a model."""
OFF = {"use_karras_sigmas": False, "use_exponential_sigmas": False, "use_beta_sigmas": False}


class Choice(NamedTuple):
    """A scheduler of diffusers by name, and how it is made from a model's own settings."""

    kind: str
    options: dict[str, Any]
    sampler: str
    schedule: str


def key(name: str) -> str:
    """The same for all spellings of a name: `DPM++ 2M`, `dpmpp_2m`, `k_dpmpp_2m`."""
    plain = backend.key(name)
    return plain[1:] if plain[1:] in SAMPLERS and plain.startswith("k") else plain


def choose(sampler: str, schedule: str) -> Choice:
    found, ending = key(sampler), ""
    for suffix in SCHEDULES:
        if found.endswith(suffix) and found != suffix:
            found, ending = found.removesuffix(suffix), suffix
    found = OTHER_NAMES.get(found, found)
    if found not in SAMPLERS:
        raise StageFailed(
            "stage_missing",
            f"diffusers has no sampler {sampler!r} here. It has {', '.join(SAMPLERS)}.",
        )
    wanted = key(schedule) or ending
    if wanted in ("", "automatic"):
        wanted = automatic(found)
    wanted = OTHER_SCHEDULES.get(wanted, wanted)
    if wanted not in SCHEDULES and wanted not in FLOW_SCHEDULES:
        raise StageFailed(
            "stage_missing",
            f"diffusers has no scheduler {schedule!r} here. It has {', '.join(SCHEDULES)}.",
        )
    kind, options = SAMPLERS[found]
    spacing = next((name for name, those in SPACING.items() if found in those), "linspace")
    more = SCHEDULES.get(wanted, {})
    return Choice(
        kind,
        {**OFF, "timestep_spacing": spacing, **options, **more},
        sampler=found,
        schedule=wanted,
    )


def is_flow(own: dict[str, Any]) -> bool:
    """Whether a model was trained by flow matching, by the settings that it came with."""
    return str(own.get("prediction_type", "")).startswith("flow") or "shift" in own


def make(
    diffusers: Any,
    own: dict[str, Any],
    sampler: str,
    schedule: str,
    *,
    going_on: Callable[[], None] | None = None,
) -> Any:
    """A fresh scheduler, from the settings that the model itself came with. `going_on`: for latents
    in the middle of their steps, which need no noise; called when some was drawn for them."""
    choice = choose(sampler, schedule)
    if is_flow(own):
        choice = _for_flow(own, choice, sampler)
    kind, options = choice.kind, choice.options
    made = getattr(diffusers, kind)
    known = inspect.signature(made.__init__).parameters
    lacking = [name for name, value in options.items() if value is True and name not in known]
    spaced = options.get("timestep_spacing") == "trailing" and "timestep_spacing" not in known
    if lacking or spaced or (choice.schedule not in SCHEDULES and not is_flow(own)):
        raise StageFailed(
            "stage_missing",
            f"diffusers has no schedule {schedule!r} for the sampler {sampler!r}.",
        )
    fitting = {name: value for name, value in options.items() if name in known}
    if going_on is not None:

        def as_it_is(_: object, sample: Any, *__: object) -> Any:
            going_on()
            return sample

        made = type(kind, (made,), dict.fromkeys(("add_noise", "scale_noise"), as_it_is))
    return made.from_config(own, **fitting)


def _for_flow(own: dict[str, Any], choice: Choice, sampler: str) -> Choice:
    kinds = FLOWS if "shift" in own else {}
    if own.get("use_dynamic_shifting"):
        kinds = {"euler": FLOWS["euler"]}  # the other one knows no shift by the image's size
    if choice.sampler not in kinds or choice.schedule not in FLOW_SCHEDULES:
        raise StageFailed(
            "stage_missing",
            f"diffusers has no sampler {sampler!r} with the schedule {choice.schedule!r} for this "
            f"model, which is trained by flow matching. It has {', '.join(kinds) or 'none'}, with "
            f"{', '.join(FLOW_SCHEDULES)}.",
        )
    options = {**OFF, **FLOW_SCHEDULES[choice.schedule]}
    return choice._replace(kind=kinds[choice.sampler], options=options)
