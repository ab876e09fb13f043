"""Other machines, as far as a home and processes of their own make them: they join over TLS."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.controllers import CORRAL
from corral.sdk.client import Client

PATIENCE_S = 60.0


class Machine:
    """`corral worker join` in a home of its own; what it has is in `yaml`."""

    def __init__(self, folder: Path, name: str, yaml: str) -> None:
        self.name, self._home = name, folder / name
        self._home.mkdir(parents=True)
        (self._home / "corral.yaml").write_text(yaml)
        self._process: subprocess.Popen[bytes] | None = None

    def join(self, client: Client) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        with (self._home / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [CORRAL, "worker", "join", client.admin.invite_worker(), "--name", self.name],
                env={**kept, "CORRAL_HOME": str(self._home)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until(lambda: any(one.name == self.name and one.connected for one in client.workers()))

    @property
    def agent(self) -> psutil.Process:
        assert self._process is not None
        (agent,) = psutil.Process(self._process.pid).children()
        return agent

    def ended(self) -> None:
        assert self._process is not None
        self._process.wait(PATIENCE_S)

    def power_off(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        everything = psutil.Process(self._process.pid).children(recursive=True)
        for one in everything:
            one.kill()
        self._process.wait(PATIENCE_S)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit("what the benchmark waits for did not come")
        time.sleep(0.01)
