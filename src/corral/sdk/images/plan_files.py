"""Makes a plan whole, with its prompt pack and images: the controller sees none of those files."""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.core.errors import InvalidPlan

if TYPE_CHECKING:
    from corral.sdk.transport.connection import Connection

MOST_BYTES = 64 << 20
"""Of a plan: no controller takes more."""


async def whole_plan(
    connection: Connection, plan: Mapping[str, Any] | str | os.PathLike[str]
) -> dict[str, Any]:
    """The plan with its pack inside, and its input images put where workers find them."""
    if isinstance(plan, Mapping):
        value, folder = dict(plan), Path()
    else:
        path = Path(plan)
        value, folder = read(path), path.parent
    if isinstance(value.get("pack"), str):
        value["pack"] = _pack(value["pack"], folder)
    return await _with_inputs(connection, value, folder)


def read(path: Path) -> dict[str, Any]:
    """A YAML or JSON file that holds `key: value` pairs."""
    import yaml

    try:
        found = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = str(error).replace(' in "<byte string>",', " at")
        told = " ".join(said.split()).removesuffix(".")
        raise _invalid(f"{path} is no YAML: {told}.") from None
    if not isinstance(found, dict):
        raise _invalid(f"{path} does not hold `key: value` pairs, as `prompts: …` is one.")
    try:
        if _length(found, {}) > MOST_BYTES:
            raise ValueError(
                f"with what its aliases repeat, it is longer than {MOST_BYTES:,} bytes"
            )
        # Dates and the like, which YAML sees where text was meant.
        whole: dict[str, Any] = json.loads(json.dumps(found, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"{path} cannot be sent as JSON: {error}.") from None
    return whole


def _invalid(message: str, part: str = "") -> InvalidPlan:
    return InvalidPlan(f"`{part}`: {message}" if part else message, details={"path": part})


def _length(value: object, known: dict[int, float]) -> float:
    """About that of its JSON: a few aliases of aliases are gigabytes. A circle is endless."""
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, dict | list | tuple | set):
        return 8
    if id(value) not in known:
        known[id(value)] = math.inf
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 2 + sum(_length(one, known) + 1 for one in inside)
    return known[id(value)]


def _pack(name: str, folder: Path) -> object:
    """What is in the file of a pack, under its name; a name that is no file's stays what it is."""
    path = _found(name, folder)
    if path is None:
        if name.endswith((".json", ".txt", ".yaml", ".yml")) or "/" in name:
            told = f"there is no file {folder / name}. A path counts from the plan's folder."
            raise _invalid(told, "pack")
        return name
    try:
        pack = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{path} is no JSON: {error}.", "pack") from None
    if isinstance(pack, list):
        pack = {"prompts": pack}
    if isinstance(pack, dict):
        inner = pack.get("pack_data")
        named = inner if isinstance(inner, dict) else pack
        if not any(named.get(key) for key in ("name", "id", "pack_id")):
            named["name"] = path.stem
    found: object = pack
    return found


def _found(name: str, folder: Path) -> Path | None:
    return next((one for one in (folder / name, Path(name)) if one.is_file()), None)


def _matching(name: object, folder: Path) -> list[Any]:
    """The files that `photos/*.png` stands for, in the order of their names; else the name."""
    if not isinstance(name, str) or not glob.has_magic(name) or _found(name, folder):
        return [name]
    for place in (folder, Path()):
        found = (one for one in glob.glob(str(place / name)) if Path(one).is_file())
        if there := sorted(found):
            return [str(Path(one).absolute()) for one in there]
    raise _invalid(f"no file is like {name!r}.", "inputs")


async def _with_inputs(
    connection: Connection, value: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Files that `inputs` names become assets, under names that any worker can give a file."""
    from corral.sdk.files import assets

    files: dict[str, dict[str, Any]] = dict(value.get("files") or {})
    renamed: dict[str, str] = {}

    async def put(names: Any) -> Any:
        if not isinstance(names, list):
            return names
        names = [one for name in names for one in _matching(name, folder)]
        for name in names:
            if not isinstance(name, str) or name in renamed or name in files:
                continue
            path = _found(name, folder)
            if path is None:
                continue  # the controller says what is missing
            asset = await assets.put(connection, path)
            known = files.get(path.name)
            own = known is None or known["sha256"] == asset.sha256
            renamed[name] = path.name if own else f"{asset.sha256[:12]}-{path.name}"
            files[renamed[name]] = {
                "sha256": asset.sha256,
                "size": asset.size,
                "path": asset.path,
            }
        return [renamed.get(name, name) if isinstance(name, str) else name for name in names]

    if "inputs" in value:
        value["inputs"] = await put(value["inputs"])
    pack = value.get("pack")
    for holder in (value, pack if isinstance(pack, dict) else {}):
        if isinstance(holder.get("prompts"), list):
            holder["prompts"] = [
                {**row, "inputs": await put(row["inputs"])}
                if isinstance(row, dict) and "inputs" in row
                else row
                for row in holder["prompts"]
            ]
    return {**value, "files": files} if files else value
