"""A stand-in for NVIDIA's library, and the file that says what it shows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
VARIABLE = "NVIDIA_FAKE_STATE"
"""Agents pass such variables on; see `passed_environment`."""


class FakeCards:
    """What the fake driver shows, for all processes that have `environ`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: dict[str, Any] = {"cards": []}
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        return {VARIABLE: str(self._path), "PYTHONPATH": str(FOLDER)}

    def add(self, uuid: str, total_gb: float = 24.0, **more: Any) -> None:
        card = {"uuid": uuid, "name": "Fake RTX 3090", "total_gb": total_gb, "processes": {}}
        self._state["cards"].append({**card, **more})
        self._write()

    def use(self, uuid: str, processes: Mapping[int, float | None], **more: Any) -> None:
        """These processes hold so many GB of it."""
        for card in self._state["cards"]:
            if card["uuid"] == uuid:
                card.update(processes={str(pid): gb for pid, gb in processes.items()}, **more)
        self._write()

    def say(self, **state: Any) -> None:
        """`hangs=True`, or `gone="Driver Not Loaded"`."""
        self._state.update(state)
        self._write()

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._state))
        os.replace(part, self._path)
