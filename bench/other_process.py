"""A part of a benchmark in a process of its own, so that the one who measures is not in its way."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bench.run import ROOT


class OtherProcess:
    """`python -m MODULE …`, ready when this returns; it goes on until it is stopped."""

    def __init__(self, module: str, *arguments: object, token: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdin
        assert self._process.stdout
        if token:
            self._process.stdin.write(f"{token}\n")
            self._process.stdin.flush()
        assert self._process.stdout.readline() == "ready\n"

    def stop(self) -> Any:
        """What it has to say in the end."""
        said, _ = self._process.communicate(timeout=600)
        return json.loads(said) if said else None
