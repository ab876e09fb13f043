"""Prompt packs of the JSON kind. Other programs write them: what is understood is taken and
checked, the rest is told as a warning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from corral.core.errors import PackNotFound
from corral.pipelines.mistakes import convert, invalid
from corral.pipelines.plan import Matrix, Row

_ROWS = ("prompts", "rows", "slots", "entries")
_POSITIVE = ("positive", "text", "prompt", "positive_prompt")
_NEGATIVE = ("negative", "negative_prompt")
_ROW = {*_POSITIVE, *_NEGATIVE, "loras", "seed", "inputs", "index"} | {
    "positive_embeddings",
    "negative_embeddings",
}
_PACK = {*_ROWS, "name", "id", "pack_id", "matrix", "version", "description", "show_preview"}
MOST_ROWS = 100_000
MOST_WEIGHT = 100
TOLD, LONGEST = 10, 60
"""Words of a pack that a warning repeats, and characters of each."""


class Pack(Struct, frozen=True):
    name: str
    rows: tuple[Row, ...]
    matrix: Matrix | None = None
    warnings: tuple[str, ...] = ()


def parse(given: object) -> Pack:
    """The pack that rides inside a plan: `corral batch` puts a file's contents there."""
    if isinstance(given, str):
        raise PackNotFound(
            f"No pack is called {given!r}. Give the path of its file to `corral batch`.",
            details={"path": "pack"},
        )
    value: Any = {"prompts": given} if isinstance(given, list) else given
    if not isinstance(value, dict):
        raise invalid("pack", "a pack is JSON: a list of prompts, or an object with `prompts`.")
    warnings: list[str] = []
    if isinstance(value.get("pack_data"), dict):
        if value.get("preset_data"):
            warnings.append(
                "The pack's own settings (preset_data) are not taken; put them under `base`."
            )
        value = value["pack_data"]
    entries = next((value[key] for key in _ROWS if isinstance(value.get(key), list)), None)
    if entries is None:
        raise invalid("pack", "it has no list of `prompts`.")
    if len(entries) > MOST_ROWS:
        raise invalid("pack", f"{len(entries):,} prompts are more than {MOST_ROWS:,}.")
    _ignored("the pack", set(value) - _PACK, warnings)
    rows = tuple(_rows(entries, warnings))
    if not rows:
        raise invalid("pack", "none of its prompts has any text.")
    named = next((value[key] for key in ("name", "id", "pack_id") if value.get(key)), "")
    if not isinstance(named, str) or len(named) > 200:
        raise invalid("pack.name", "it must be text of at most 200 characters.")
    return Pack(named, rows, _matrix(value.get("matrix")), tuple(warnings))


def _rows(entries: list[Any], warnings: list[str]) -> Iterable[Row]:
    unknown: set[str] = set()
    empty = 0
    for number, entry in enumerate(entries):
        where = f"pack.prompts[{number}]"
        if isinstance(entry, str):
            entry = {"positive": entry}
        if not isinstance(entry, dict):
            raise invalid(where, "a prompt is text, or an object with `positive`.")
        unknown |= set(entry) - _ROW
        positive = _joined(entry, _POSITIVE, "positive_embeddings", where)
        if not positive:
            empty += 1
            continue
        yield convert(
            {
                "positive": positive,
                "negative": _joined(entry, _NEGATIVE, "negative_embeddings", where),
                "loras": _loras(entry.get("loras"), where),
                "seed": entry.get("seed"),
                "inputs": entry.get("inputs") or [],
            },
            Row,
            where=where,
        )
    if empty:
        warnings.append(f"Prompts of the pack without text were left out: {empty}.")
    _ignored("its prompts", unknown, warnings)


def _joined(entry: dict[str, Any], keys: tuple[str, ...], embeddings: str, where: str) -> Any:
    """The text behind its embeddings, which are words of a prompt."""
    text = next((entry[key] for key in keys if entry.get(key)), "")
    if not isinstance(text, str):
        return text
    if not text.strip() and keys is _POSITIVE:
        return ""
    named = entry.get(embeddings) or ()
    if not isinstance(named, list | tuple):
        raise invalid(f"{where}.{embeddings}", "it needs a list of names.")
    words = [_weighted(one, f"{where}.{embeddings}") for one in named]
    return ", ".join([*words, text.strip()] if text.strip() else words)


def _weighted(embedding: object, where: str) -> str:
    match embedding:
        case str():
            return embedding
        case [str() as name, int() | float() as weight] if abs(weight) <= MOST_WEIGHT:
            return name if weight == 1 else f"({name}:{weight:g})"
    raise invalid(where, f"an embedding is its name, or [name, weight up to {MOST_WEIGHT}].")


def _loras(value: object, where: str) -> list[object]:
    """In any of the ways people write them: names, pairs, objects, one object of weights."""
    if isinstance(value, dict):
        value = [[name, weight] for name, weight in value.items()]
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{where}.loras", "it needs a list, such as [[name, 0.8]].")
    found: list[object] = []
    for one in value:
        match one:
            case str():
                found.append({"name": one})
            case [name, weight]:
                found.append({"name": name, "weight": weight})
            case [name]:
                found.append({"name": name})
            case _:
                found.append(one)
    return found


def _matrix(value: object) -> Matrix | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise invalid("pack.matrix", "it needs `slots` with lists of values.")
    if value.get("enabled") is False:
        return None
    slots = value.get("slots") or {}
    if isinstance(slots, list):
        listed = [one for one in slots if isinstance(one, dict)]
        slots = {str(one.get("name")): one.get("values") for one in listed if one.get("name")}
    if not slots:
        return None
    kept = {key: value[key] for key in ("mode", "rng_seed") if value.get(key) is not None}
    return convert(
        {**kept, "limit": value.get("limit") or None, "slots": slots}, Matrix, where="pack.matrix"
    )


def _ignored(who: str, words: set[Any], warnings: list[str]) -> None:
    if words:
        told = ", ".join(word[:LONGEST] for word in sorted(map(str, words))[:TOLD])
        warnings.append(f"Words of {who} that mean nothing here were left out: {told}.")
