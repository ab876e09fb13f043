"""Settings as people write them: `corral.yaml`, and the same notation in a variable."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

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
        raise InvalidSettings(f"{path} must hold `key: value` lines, not a {_word(parsed)}.")
    return parsed


def parse(name: str, text: str) -> Any:
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise InvalidSettings(f"{name} is not a valid value: {text!r}.") from error


def _word(value: object) -> str:
    return {"list": "list", "str": "text"}.get(type(value).__name__, type(value).__name__)
