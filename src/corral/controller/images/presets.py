"""Presets: bases of plans that are kept under a name, each in a file of the home."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from corral.controller.files.private_file import write_kept
from corral.core.errors import Conflict, InvalidRequest, PresetNotFound, StorageFailed
from corral.core.malformed import MALFORMED
from corral.home import sync_folder
from corral.pipelines.config import PlanConfig
from corral.pipelines.mistakes import convert

MAX_PRESETS = 1_000
MAX_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Preset(Struct, frozen=True):
    name: str
    saved_at: float
    value: dict[str, Any]


class PresetFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changing = asyncio.Lock()

    def names(self) -> list[tuple[str, float]]:
        """Names and when each was saved, by name."""
        found = []
        for path in self._paths():
            try:
                found.append((path.stem, path.stat().st_mtime))
            except FileNotFoundError:
                continue  # removed this very moment
        return sorted(found)

    def _paths(self) -> list[Path]:
        return [one for one in self._folder.glob("*.json") if NAME.fullmatch(one.stem)]

    def get(self, name: str) -> Preset:
        path = self._path(name)
        try:
            value = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            return Preset(name, path.stat().st_mtime, value)
        except FileNotFoundError:
            raise PresetNotFound(
                f"There is no preset {name[:100]!r}. `corral presets list` shows which there are, "
                f"`corral presets save {name[:100]} FILE` saves one."
            ) from None
        except (OSError, *MALFORMED) as error:
            raise StorageFailed(
                f"The preset in {path} cannot be read ({error}). Save it again, or remove it."
            ) from error

    async def save(self, name: str, data: bytes) -> Preset:
        """In the place of an older one of this name. Durable when this returns."""
        path, value = self._path(name), _value(data)
        convert(value, PlanConfig)  # says why, where it cannot be the base of a plan
        async with self._changing:
            if not path.exists() and len(self._paths()) >= MAX_PRESETS:
                raise Conflict(f"There are {MAX_PRESETS:,} presets. Remove some first.")
            try:
                await write_kept(path, value)
            except RecursionError:
                raise InvalidRequest("This preset is nested too deeply.") from None
            return self.get(name)

    async def remove(self, name: str) -> Preset:
        async with self._changing:
            found = self.get(name)
            self._path(name).unlink(missing_ok=True)
            await asyncio.to_thread(sync_folder, self._folder)
        return found

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                "A preset's name has 1 to 64 letters, digits and _.-, and begins with none of the "
                f"last two; got {name[:100]!r}."
            )
        return self._folder / f"{name}.json"


def _value(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"A preset has up to {MAX_BYTES:,} bytes; this one has {len(data):,}.")
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except MALFORMED as error:
        raise InvalidRequest(
            "A preset is the base of a plan, an object with settings by stage, as "
            f'{{"txt2img": {{"steps": 20}}}}; this is none: {error}.'
        ) from None
    return found
