"""Keeps a worker running: starts its agent, starts it again, and tries a newer one out.

What `corral worker join` and the service run. A newer Corral is on trial until its agent was
welcomed by the controller; only then it is the current one: a bad one costs seconds, not a machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.home import read_json, sync_folder, write_private_json

FOR_GOOD = frozenset({0, 75, 77, 78})
"""Codes of an agent that meant to end: asked to, replaced, revoked, unusable."""
UPDATE = 85
"""An agent's way to say: I am idle, and a newer one lies ready."""
TRIAL_S = 120.0
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
LASTED_S = 60.0
POLL_S = 0.1
COMPLETE = ".complete"
"""The last file of an installation: without it the rest is not trusted."""
TRIES = 2
"""How often one wheel is tried out before it counts as unfit for this machine."""


class Software:
    """The Corrals of this machine, side by side: `current` leads to the one that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "current"
        self._next = folder / "next.json"
        self._tried = folder / "tried.json"

    @classmethod
    def here(cls) -> Software | None:
        """Where the running Corral was put by `/join`; None where somebody else looks after it."""
        folder = Path(sys.prefix).resolve().parent
        if folder.name != "software" or not (folder / "current").is_symlink():
            return None
        return cls(folder)

    def python(self, name: str = "current") -> Path:
        return (self.folder / name).resolve() / "bin" / "python"

    def propose(self, name: str, sha256: str) -> None:
        write_private_json(self._next, {"name": name, "sha256": sha256})

    def proposed(self) -> tuple[str, str] | None:
        told = read_json(self._next)
        name, sha256 = str(told.get("name", "")), str(told.get("sha256", ""))
        whole = name and (self.folder / name / COMPLETE).exists()
        return (name, sha256) if whole else None

    def unfit(self, sha256: str) -> bool:
        return int(read_json(self._tried).get(sha256, 0)) >= TRIES

    def trying(self, sha256: str) -> None:
        """Counted before the trial: one that takes the whole machine down counts too."""
        tried = read_json(self._tried)
        write_private_json(self._tried, {sha256: int(tried.get(sha256, 0)) + 1})
        self._next.unlink(missing_ok=True)

    def failed(self, name: str) -> None:
        """It did not come up: what lies there may be damaged, so it is installed anew."""
        (self.folder / name / COMPLETE).unlink(missing_ok=True)

    def switch(self, name: str) -> None:
        """From now on this one; the one before stays beside it, older ones go."""
        former = self.current.resolve().name
        link = self.folder / ".current"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        os.replace(link, self.current)
        sync_folder(self.folder)
        self._tried.unlink(missing_ok=True)
        kept = {name, former, Path(sys.prefix).resolve().name}
        for other in self.folder.iterdir():
            if other.is_dir() and not other.is_symlink() and other.name not in kept:
                shutil.rmtree(other, ignore_errors=True)


class Keeper:
    def __init__(self, home: Path, *, restarts: bool) -> None:
        self._home, self._restarts = home, restarts
        """Whether an agent that died is started again; a person in front of it sees it instead."""
        self._software = Software.here()
        self._agent: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            code = self._work()
            if code in FOR_GOOD or self._stopping:
                return code
            if code != UPDATE and not self._restarts:
                return code
            if time.monotonic() - began > LASTED_S or code == UPDATE:
                pause_s = FIRST_PAUSE_S
            if code != UPDATE:
                _say(f"The worker ended with {code}; it starts again in {pause_s:g} s.")
                self._sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _work(self) -> int:
        software = self._software
        proposed = software.proposed() if software else None
        if software is None or proposed is None or software.unfit(proposed[1]):
            return self._start(software.python() if software else Path(sys.executable)).wait()
        name, sha256 = proposed
        software.trying(sha256)
        (self._home / "worker" / "up.json").unlink(missing_ok=True)
        agent = self._start(software.python(name))
        if self._came_up(agent):
            software.switch(name)
            _say(f"The worker is now Corral {name.partition('-')[0]}.")
            return agent.wait()
        if not self._stopping:
            _say(f"Corral {name.partition('-')[0]} does not come up here; the one before goes on.")
            software.failed(name)
        return self._end(agent)

    def _start(self, python: Path) -> subprocess.Popen[bytes]:
        command = [str(python), "-m", "corral.agent.main", "--home", str(self._home)]
        self._agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        if self._stopping:  # asked to stop between two agents
            self._agent.terminate()
        return self._agent

    def _came_up(self, agent: subprocess.Popen[bytes]) -> bool:
        """Whether the controller welcomed it."""
        deadline = time.monotonic() + TRIAL_S
        while agent.poll() is None and time.monotonic() < deadline and not self._stopping:
            if read_json(self._home / "worker" / "up.json").get("pid") == agent.pid:
                return True
            time.sleep(POLL_S)
        return False

    def _end(self, agent: subprocess.Popen[bytes]) -> int:
        """After a trial that failed: the next round starts the one before."""
        if agent.poll() is None:
            agent.terminate()
            try:
                agent.wait(30)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        return 0 if self._stopping else UPDATE

    def _stop(self, number: int, frame: Any) -> None:
        self._stopping = True
        # Ctrl-C reached the agent as well; a service tells only us.
        if number == signal.SIGTERM and self._agent is not None and self._agent.poll() is None:
            with suppress(OSError):
                self._agent.terminate()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until:
            time.sleep(POLL_S)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":  # in the foreground: a person sees what ended it
    sys.exit(Keeper(Path(sys.argv[1]), restarts=False).run())
