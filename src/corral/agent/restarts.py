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
from corral.core.backends import ComfyUIEntry, Entry, WebUIEntry

log = structlog.get_logger("corral.agent.restarts")

PAUSE_S = 300.0
"""A server takes its time to come up, minutes with a large model; nobody starts it twice meanwhile.
One that did come up and is down again is started at once."""


class Restarts:
    def __init__(self, entries: Sequence[Entry], environ: Mapping[str, str], said: Path) -> None:
        self._commands = {
            entry.kind: entry.restart
            for entry in reversed(entries)
            if isinstance(entry, WebUIEntry | ComfyUIEntry) and entry.restart
        }
        self._environ = dict(environ)
        self._said = said
        """The file that gets what the commands say."""
        self._tried: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def down(self, kind: str) -> None:
        """A backend of this kind does not answer."""
        now = time.monotonic()
        if kind not in self._commands or now - self._tried.get(kind, -PAUSE_S) < PAUSE_S:
            return
        self._tried[kind] = now
        task = asyncio.create_task(self._run(kind, self._commands[kind]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answers(self, kind: str) -> None:
        self._tried.pop(kind, None)

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
