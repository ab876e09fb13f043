"""What is wrong with a description, where in the file, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

import yaml

from corral.pipelines.mistakes import BOUNDS, KINDS, NOTHING, split, value_at

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def told(said: str, parsed: object, text: str, known: Sequence[str], words: Sequence[str]) -> str:
    """msgspec's sentence as one for people who wrote YAML. `known` are all words that the file may
    have as keys, `words` those that a choice may have."""
    what, path = split(said)
    steps = [name or int(number) for name, number in _STEP.findall(path)]
    if re.search(r"unknown field `(.*)`", what):
        steps.append(what.split("`")[1])  # the line of the word itself
    line = _line(text, steps)
    where = f"line {line}, " if line else ""
    return f"{where}{_place(steps)}{_wrong(what, parsed, steps, known, words)}"


def _wrong(
    what: str,
    parsed: object,
    steps: Sequence[str | int],
    known: Sequence[str],
    words: Sequence[str],
) -> str:
    value = value_at(parsed, steps)
    got = "" if value is NOTHING or isinstance(value, dict) else f"; got {value!r:.80}"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        near = get_close_matches(match[1], known, 1)
        return "nothing is called so" + (f"; did you mean `{near[0]}`?" if near else ".")
    if match := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"`{match[1]}` is missing."
    if what.startswith("Invalid enum value"):
        return f"it is one of {', '.join(words)}{got}."
    if match := re.fullmatch(r"Expected `(\w+)` (>=|<=|>|<) (.*)", what):
        return f"it must be {BOUNDS[match[2]]} {match[3]}{got}."
    if match := re.fullmatch(r"Expected `array` of (?:at (?:least|most) )?length (\d+).*", what):
        return f"it needs a list of {match[1]}{got}."
    if match := re.fullmatch(r"Expected `(\w+)(?: \| null)?`, got `\w+`", what):
        return f"it needs {KINDS.get(match[1], match[1])}{got}."
    return f"{what}{got}."


def _place(steps: Sequence[str | int]) -> str:
    """`jobs`, entry 1, `seconds`: people count from one."""
    parts = [f"`{one}`" if isinstance(one, str) else f"entry {one + 1}" for one in steps]
    return f"{', '.join(parts)}: " if parts else ""


def _line(text: str, steps: Sequence[str | int]) -> int:
    """Where it stands in the file, as far as the way there leads; 0 where that is nowhere."""
    node, line = yaml.compose(text, Loader=yaml.SafeLoader), 0
    for step in steps:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if step not in pairs:
                break
            key, node = pairs[step]
            line = key.start_mark.line + 1
            continue
        else:
            break
        line = node.start_mark.line + 1
    return line


def unreadable(error: yaml.YAMLError) -> str:
    """What YAML itself cannot read."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{' '.join(problem.split())}"
