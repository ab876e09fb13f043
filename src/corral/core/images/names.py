"""The names of samplers, schedules and upscalers, as people and programs spell them."""

from __future__ import annotations

import re


def folded(name: str) -> str:
    """`DPM++ 2M`, `dpmpp_2m` and `k_dpmpp_2m` are one sampler."""
    letters = re.sub(r"[^a-z0-9+]", "", name.lower().removeprefix("k_"))
    return letters.replace("++", "pp").replace("ancestral", "a")
