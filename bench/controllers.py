"""A controller to be measured: `corral up` in a process of its own, with a home of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from corral.joining import trust
from corral.sdk.client import Client

CORRAL = str(Path(sys.executable).with_name("corral"))
START_S = 60.0
TWO_SLOTS = {"worker": {"cpus": 2}}


class Controller:
    """`with Controller(folder) as controller:` up and healthy on entry, gone on exit."""

    def __init__(
        self, folder: Path, settings: dict[str, Any] | None = None, *, without: str = ""
    ) -> None:
        self.folder = folder
        self._without = without
        """Fast paths that are off."""
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "corral.yaml").write_text(json.dumps(settings or TWO_SLOTS))  # JSON is YAML
        self.process: psutil.Popen | None = None
        self.begun = 0.0

    def launch(self) -> None:
        """Only starts it; `begun` is the moment before."""
        (self.home / "controller.json").unlink(missing_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        with (self.folder / "controller.log").open("ab") as log:
            self.begun = time.perf_counter()
            self.process = psutil.Popen(
                [CORRAL, "up", "--port", "0", "--grpc-port", "0"],
                env={**kept, "CORRAL_HOME": str(self.home), "CORRAL_WITHOUT": self._without},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def until_healthy(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "controller.log").read_text(errors="replace")[-2000:]
                raise SystemExit(f"corral up did not start:\n{log}")
            time.sleep(0.002)

    def _healthy(self) -> bool:
        try:
            kept = self.card.get("certificate")
            context = trust.context(Path(kept).read_text()) if kept else None
            url = f"{self.card['http']}/health"
            with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                return int(answer.status) == 200
        except (OSError, ValueError, urllib.error.URLError):
            return False

    @property
    def card(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "controller.json").read_text())
        return found

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def door(self) -> Path:
        """What clients are made with, as those of any program on this machine: the home."""
        return self.home

    def tree(self) -> list[psutil.Process]:
        """The controller, its agent, and what that started."""
        assert self.process is not None
        return [psutil.Process(self.process.pid), *self.process.children(recursive=True)]

    def cpu_s(self) -> float:
        """Processor time of the controller alone, so far."""
        assert self.process is not None
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def peak_mb(self) -> float:
        """The kernel's own high-water mark of the controller's memory."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 1000

    def kill(self) -> None:
        """SIGKILL for the controller alone: its agent sees it vanish."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def power_off(self) -> None:
        assert self.process is not None
        everything = self.tree() if self.process.is_running() else []
        for one in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()
        psutil.wait_procs(everything[1:], timeout=10)

    def __enter__(self) -> Controller:
        self.launch()
        self.until_healthy()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.power_off()
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def held_slots(client: Client, folder: Path, slots: int = 2) -> Iterator[Callable[[], None]]:
    """Every slot is taken inside this block, so that whatever is submitted has to wait. Jobs must
    be allowed to read the folder (`worker.read_paths`). Yields what frees the slots earlier."""
    ending = folder / f"release-{time.monotonic_ns()}"

    def hold(path: str) -> None:
        import os
        import time

        print("held", flush=True)
        while not os.path.exists(path):
            time.sleep(0.002)

    handles = [client.submit(hold, (str(ending),), priority=100) for _ in range(slots)]
    for handle in handles:
        next(iter(handle.logs()))
    try:
        yield ending.touch
    finally:
        ending.touch()
        for handle in handles:
            handle.result(timeout=300)
