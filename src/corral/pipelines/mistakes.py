"""What is wrong with a plan, where in it, and what to write instead."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from corral.core.errors import InvalidPlan

T = TypeVar("T")
Step = str | int

_SAID = re.compile(r"(?P<what>.*?)(?: - at `(?P<where>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")
BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
KINDS = {
    "array": "a list",
    "object": "`key: value` pairs",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "nothing",
}
NOTHING = object()
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring = 2, 60


def invalid(path: str, sentence: str, **details: Any) -> InvalidPlan:
    path = path[:200]
    where = f"`{path}`: " if path else ""
    return InvalidPlan(f"{where}{sentence[:1000]}", details={"path": path, **details})


def near(word: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(word, known, 3) if len(word) <= 100 else []


def suggestion(word: str, known: Sequence[str], otherwise: str = "") -> str:
    found = near(word, known)
    if found:
        return f"Did you mean `{found[0]}`?"
    return otherwise or f"It may be {', '.join(known)}."


def convert(
    value: object, wanted: type[T], where: str = "", values: Mapping[str, Any] | None = None
) -> T:
    """`value` as `wanted`, or an InvalidPlan that names the culprit. `values` are the types behind
    free keys, by path: msgspec does not say which key it was."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        what, path = split(str(error))
    except RecursionError:
        what, path = "it is nested too deeply", ""
    steps = _named(path, value, values or {})
    field = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    if field:
        known = _keys(wanted, steps)
        spot = _spot(where, [*steps, field[1]])
        hint = _elsewhere(wanted, steps, field[1]) or suggestion(field[1], known)
        raise invalid(spot, f"nothing is called so here. {hint}", near=near(field[1], known))
    raise invalid(_spot(where, steps), _wrong(what, wanted, steps, value_at(value, steps)))


def split(said: str) -> tuple[str, str]:
    """What msgspec says is wrong, and where."""
    found = _SAID.fullmatch(said)
    return (found["what"], found["where"] or "") if found else (said, "")


def _wrong(what: str, wanted: Any, steps: Sequence[Step], value: object) -> str:
    got = "" if value is NOTHING else f"; got {_short(value)}"
    if what == "Expected `str`":
        return (
            "a key is no text. Put it in quotes: YAML reads on, off, yes and no as true or false."
        )
    if match := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"`{match[1]}` is missing. Add it."
    if what.startswith("Invalid enum value"):
        choices = _choices(wanted, steps)
        found = near(value, choices) if isinstance(value, str) else []
        guess = f" Did you mean `{found[0]}`?" if found else ""
        return f"it is one of {', '.join(choices)}{got}.{guess}"
    if match := re.fullmatch(r"Expected `(\w+)` (>=|<=|>|<) (.*)", what):
        return f"it must be {BOUNDS[match[2]]} {match[3]}{got}."
    if match := re.fullmatch(r"Expected `(\w+)` of length (>=|<=) (\d+)", what):
        unit = "characters" if match[1] == "str" else "entries"
        length = f", has {len(value)}" if isinstance(value, list | dict | str) else ""
        return f"it must have {BOUNDS[match[2]]} {match[3]} {unit}{length}."
    if match := re.fullmatch(r"Expected `(\w+)` that's a multiple of (\d+)", what):
        return f"it must be a multiple of {match[2]}{got}."
    if match := re.fullmatch(r"Expected `([\w | ]+)`, got `\w+`", what):
        kinds = [one for one in match[1].split(" | ") if one != "null"]
        quotes = "str" in kinds and isinstance(value, bool | int | float)
        hint = " Put it in quotes to have it as text." if quotes else ""
        return f"it needs {' or '.join(KINDS.get(one, one) for one in kinds)}{got}.{hint}"
    return f"{what}{got}."


def _short(value: object) -> str:
    """Of anything, however large or deep."""
    text = _repr.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _spot(where: str, steps: Sequence[Step]) -> str:
    """`variants.axes.steps[1]`, as one would write it."""
    path = where
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _named(path: str, value: Any, values: Mapping[str, Any]) -> list[Step]:
    steps: list[Step] = []
    for name, number, any_key in _STEP.findall(path):
        if any_key:
            wanted = values.get(_spot("", steps), Any)
            inside = value_at(value, steps)
            entries = inside if isinstance(inside, dict) else {}
            steps.append(next((key for key, one in entries.items() if _bad(one, wanted)), "…"))
        else:
            steps.append(name or int(number))
    return steps


def _bad(value: object, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return True
    return False


def value_at(value: Any, steps: Sequence[Step]) -> object:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return value


def _inside(wanted: Any, steps: Sequence[Step]) -> list[inspect.Type]:
    """All types that may stand at such a place."""
    found = _flat(inspect.type_info(wanted))
    for step in steps:
        below: list[inspect.Type] = []
        for one in found:
            if isinstance(one, inspect.StructType):
                below += [field.type for field in one.fields if field.encode_name == step]
            elif isinstance(one, inspect.DictType):
                below.append(one.value_type)
            elif isinstance(one, inspect.VarTupleType | inspect.ListType):
                below.append(one.item_type)
        found = [flat for one in below for flat in _flat(one)]
    return found


def _flat(one: inspect.Type) -> list[inspect.Type]:
    if isinstance(one, inspect.UnionType):
        return [flat for part in one.types for flat in _flat(part)]
    return _flat(one.type) if isinstance(one, inspect.Metadata) else [one]


def _keys(wanted: Any, steps: Sequence[Step]) -> list[str]:
    structs = [one for one in _inside(wanted, steps) if isinstance(one, inspect.StructType)]
    return [field.encode_name for one in structs for field in one.fields]


def _choices(wanted: Any, steps: Sequence[Step]) -> list[str]:
    found: list[str] = []
    for one in _inside(wanted, steps):
        if isinstance(one, inspect.LiteralType):
            found += [str(value) for value in one.values if value != ""]
        elif isinstance(one, inspect.EnumType):
            found += [str(member.value) for member in one.cls]
    return found


def _elsewhere(wanted: Any, steps: Sequence[Step], word: str) -> str:
    """What people look for in other places: model, sampling and size stand under txt2img for all
    stages, and a worker is one of the needs."""
    if not steps and word in _keys(wanted, ["needs"]):
        return f"`{word}` stands under `needs`; move it there."
    if word in _keys(wanted, [*steps, "txt2img"]):
        return f"It stands under `txt2img`: `{_spot('', [*steps, 'txt2img', word])}`."
    if steps and steps[-1] in ("img2img", "adetailer", "upscale"):
        beside = [*steps[:-1], "txt2img"]
        if word in _keys(wanted, beside):
            return f"`{word}` stands under `txt2img` and holds for every stage; move it there."
    return ""
