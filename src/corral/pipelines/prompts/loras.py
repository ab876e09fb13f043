"""LoRAs, which a record has by name and weight: from settings, from rows, and from `<lora:…>` in a
prompt, where WebUI's users write them."""

from __future__ import annotations

import re

from corral.core.images.pipeline import Lora, canonical
from corral.pipelines.mistakes import invalid

_TAG = re.compile(r"<lora:([^:<>]+)(?::([^:<>]*))?>")


def taken_out(prompt: str, where: str) -> tuple[str, tuple[Lora, ...]]:
    """The prompt without its tags, and what they said.

    >>> taken_out("a castle <lora:mist:0.5>, rain", "prompts[0]")
    ('a castle, rain', (Lora(name='mist', weight=0.5),))
    """
    if "<lora:" not in prompt:
        return prompt, ()
    found, kept, end = [], [], 0
    for tag in _TAG.finditer(prompt):
        kept.append(prompt[end : tag.start()].rstrip())
        name, weight, end = tag[1], tag[2], tag.end()
        try:
            number = float(weight) if weight else 1.0
        except ValueError:
            number = float("nan")
        if not -10 <= number <= 10:
            raise invalid(where, f"<lora:{name}:{weight}> needs a weight from -10 to 10.")
        found.append(Lora(name=name, weight=number))
    left = "".join([*kept, prompt[end:]]).strip()
    if "<lora:" in left:
        raise invalid(where, "a <lora:…> in it is not of the form <lora:name:weight>.")
    return left, tuple(found)


def joined(base: tuple[Lora, ...], more: tuple[Lora, ...]) -> tuple[Lora, ...]:
    """Each once, in order of appearance; the last weight given holds."""
    if not more:
        return base
    return tuple({one.name: canonical(one) for one in (*base, *more)}.values())
