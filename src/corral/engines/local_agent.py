"""The agent on the controller's own machine: started with it, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from pathlib import Path

import structlog

from corral.home import Home, read_json, write_private_json
from corral.locks import is_locked
from corral.variables import agent_environment

log = structlog.get_logger()

ALREADY_RUNNING = 75
"""What an agent exits with when another one has this worker's home: it outlived a controller."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 10.0
ADOPTED_PAUSE_S = 0.5
"""How often an agent that outlived a controller is looked after: it is nobody's child."""


class LocalAgent:
    def __init__(self, home: Home, name: str) -> None:
        self._home = home
        known = read_json(home.agent)
        self.worker_id: str = known.get("worker_id") or f"w-{secrets.token_hex(6)}"
        self.credential: str = known.get("credential") or secrets.token_urlsafe(32)
        self.name = name or known.get("name") or socket.gethostname().split(".")[0] or "local"
        self.stopping = False
        """Set once the controller ends: then its agent ends too, and is not started again."""
        self._process: asyncio.subprocess.Process | None = None

    def introduce(self, url: str, certificate: str = "") -> None:
        """Writes down where the controller is; a surviving agent finds it there too."""
        write_private_json(
            self._home.agent,
            {
                "url": url,
                "credential": self.credential,
                "worker_id": self.worker_id,
                "name": self.name,
                "certificate": certificate,
            },
        )

    async def run(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            started = asyncio.get_running_loop().time()
            try:
                if is_locked(self._home.worker / "lock"):  # of an earlier controller: now ours
                    await asyncio.sleep(ADOPTED_PAUSE_S)
                    continue
                code = await self._once(self._home.path)
            except OSError as error:  # no descriptor, no memory, no more processes: for now
                log.error("local_agent_not_started", error=str(error), again_in_s=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE_S)
                continue
            if self.stopping:
                return
            if code == ALREADY_RUNNING:
                pause = 1.0
            else:
                log.warning("local_agent_ended", code=code)
                lasted = asyncio.get_running_loop().time() - started
                pause = FIRST_PAUSE_S if lasted > 30 else min(pause * 2, LAST_PAUSE_S)
            await asyncio.sleep(pause)

    async def _once(self, home: Path) -> int:
        # A session of its own: Ctrl-C in the controller's terminal is for the controller.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "corral.agent.main",
            "--home",
            str(home),
            "--embedded",
            stdin=asyncio.subprocess.DEVNULL,
            env=agent_environment(),
            start_new_session=True,
        )
        return await self._process.wait()

    async def end(self) -> None:
        """Ends what is left after the agent had its time to say goodbye."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
