"""`corral.yaml` and its notation in variables; and plain words for what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from corral.core.errors import InvalidSettings


class _Loader(yaml.SafeLoader):
    """To YAML a bare `on` is a truth value; as a key, as in `notify`, it is a word here."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be read: {error}.") from error
    try:
        parsed = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise InvalidSettings(f"{path} is not valid YAML: {line}.") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        word = "text" if kind == "str" else kind
        raise InvalidSettings(f"{path} must hold `key: value` lines, not a {word}.")
    return parsed


def parse(name: str, text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise InvalidSettings(f"{name} is not a valid value: {text!r}.") from error


def choices_of(kind: Any) -> list[str]:
    """The words that a setting may have, where it has a closed set of them."""
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    return [word for inner in get_args(kind) for word in choices_of(inner)]


def plain(reason: str, choices: list[str]) -> str:
    """A validation error in words that also those understand who do not write Python."""
    if choices and "enum value" in reason:
        wrong = re.search(r"enum value (.*?)( - at |$)", reason)
        said = wrong[1] if wrong else "it"
        return f"{said} is none of {', '.join(word or '(nothing)' for word in choices)}"
    reason = reason.replace("`", "").replace("array", "a list such as [a, b]")
    reason = reason.replace("Object missing required", "it lacks the required")
    reason = reason.replace("Object contains unknown", "it has an unknown")
    reason = reason.replace("object", "key: value pairs")
    reason = re.sub(
        r"str matching regex '\^https.*'",
        "an address such as http://127.0.0.1:7860, with username and password apart from it",
        reason,
    )
    return re.sub(
        r" - at \$\[?(\d*)\]?.*", lambda at: f" (in item {at[1]})" if at[1] else "", reason
    )
