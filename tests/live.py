"""A real controller for tests: `corral up` in a process of its own, on free ports, in a new home.

Whoever needs to kill, restart or damage one makes a LiveController of its own; the others share
the fixture `controller`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from corral.joining import trust
from tests import kit
from tests.eventually import eventually

CORRAL = str(Path(sys.executable).with_name("corral"))
"""The command of this environment, whatever the PATH says."""
LIMITED_UP = Path(__file__).with_name("limited_up.py")
STOP_S = 30.0


class LiveController:
    """`with LiveController(home) as controller:` up on entry, SIGTERM on exit."""

    def __init__(
        self,
        home: Path,
        *flags: str,
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        limits: Mapping[str, float] | None = None,
    ) -> None:
        self.home = home
        self._prefix = prefix
        """Words before the command that end by becoming it: as another user, for one."""
        self.flags = flags
        self._limits = limits
        """Of `core.limits`, which are no settings."""
        self._environ = environ or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.enrolment = f"enrolment-{os.urandom(8).hex()}"
        """With which somebody enrols, also where nobody is invited: on loopback."""

    @property
    def environ(self) -> dict[str, str]:
        """For clients in processes of their own: nothing of the caller's Corral leaks in."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        # Hundreds of homes with the usual reserve would fill a small disk themselves.
        small = {"CORRAL_DISK_RESERVE_MB": "1"}
        return {**kept, **small, "CORRAL_HOME": str(self.home), **self._environ}

    @property
    def card(self) -> dict[str, object]:
        """What the controller says of itself: addresses and pid."""
        found: dict[str, object] = json.loads((self.home / "controller.json").read_text("utf-8"))
        return found

    @property
    def address(self) -> str:
        return str(self.card["grpc"])

    @property
    def url(self) -> str:
        return str(self.card["http"])

    @property
    def token(self) -> str:
        return (self.home / "token").read_text("utf-8").strip()

    @property
    def log(self) -> str:
        path = self.home / "test.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if not self._prefix and not (self.home / "journal").exists():
            digest = hashlib.sha256(self.enrolment.encode()).hexdigest()
            invitation = {"sha256": digest, "expires_at": time.time() + 86_400}
            roster = self.home / "workers.json"
            roster.touch(0o600)
            roster.write_text(json.dumps({"invitations": [invitation]}))
        if not self._prefix and self.environ.get("CORRAL_WORKER_ENABLED") != "false":
            kit.give(self.home)
        up = [CORRAL, "up"]
        if self._limits is not None:
            up = [sys.executable, str(LIMITED_UP), json.dumps(self._limits)]
        command = [*self._prefix, *up, "--port", "0", "--grpc-port", "0"]
        with (self.home / "test.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(self._up, "corral up is healthy")
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log}") from None

    def _up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"corral up ended with {self.process.returncode}"
        return self.healthy()

    def healthy(self) -> bool:
        try:
            if self.process is None or self.card["pid"] != self.process.pid:
                return False
            certificate = str(self.card.get("certificate") or "")
            context = trust.context(Path(certificate).read_text()) if certificate else None
            with urllib.request.urlopen(f"{self.url}/health", timeout=2, context=context) as answer:
                return int(answer.status) == 200
        except (OSError, ValueError, KeyError, urllib.error.URLError):
            return False

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"SIGTERM ignored for {STOP_S:g} s:\n{self.log}") from None

    def kill(self) -> None:
        """SIGKILL: what a crash looks like from outside."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_S)

    def __enter__(self) -> LiveController:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
