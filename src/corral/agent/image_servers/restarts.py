"""Image servers on this machine that went down are started again, by the command their owner gave.

The agent does it and not the pipeline that noticed: what a job process starts is confined with it
and ends with it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from corral.agent import system
from corral.core.images.backends import ComfyUIEntry, Entry, WebUIEntry

log = structlog.get_logger("corral.agent.image_servers.restarts")

PAUSE_S = 300.0
"""A server takes its time to come up, minutes with a large model; nobody starts it twice meanwhile.
One that did come up and is down again is started at once."""


class Restarts:
    def __init__(self, entries: Sequence[Entry], environ: Mapping[str, str], said: Path) -> None:
        self._servers = [one for one in entries if isinstance(one, WebUIEntry | ComfyUIEntry)]
        self._environ = dict(environ)
        self._said = said
        """The file that gets what the commands say."""
        self._tried: dict[str, float] = {}
        """By address."""
        self._tasks: set[asyncio.Task[None]] = set()

    def down(self, kind: str, said: str) -> None:
        """A backend of this kind does not answer. Of several it is the one whose address is in
        what was said: nobody starts another one again, which may be in the middle of an image."""
        alike = [one for one in self._servers if one.kind == kind]
        named = [one for one in alike if f"{one.url.rstrip('/')} " in f"{said} "]
        server = next(iter(named or alike), None)
        now = time.monotonic()
        if server is None or not server.restart:
            return
        if now - self._tried.get(server.url, -PAUSE_S) < PAUSE_S:
            return
        self._tried[server.url] = now
        task = asyncio.create_task(self._run(kind, server.restart))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answers(self, url: str) -> None:
        self._tried.pop(url, None)

    async def _run(self, kind: str, command: str) -> None:
        log.warning("backend_restarting", backend=kind, command=command)
        try:
            with self._said.open("ab") as said:
                process = await asyncio.create_subprocess_exec(
                    *shlex.split(command, posix=sys.platform != "win32"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env=self._environ,
                    **system.apart(),
                )
            code = await process.wait()
        except (OSError, ValueError) as error:
            log.error("backend_not_restarted", backend=kind, reason=str(error))
            return
        log.info("backend_restart_ended", backend=kind, exit_code=code, said=str(self._said))

    async def close(self) -> None:
        """What was started stays: a server is nobody's job."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
