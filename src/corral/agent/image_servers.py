"""Image servers of this worker: what they have, asked beside the work, and restarting them.

One that falls silent keeps its last offer: jobs find out whether it is down, and set off its
restart. To one that never answered no job comes, so that one is restarted from here.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import structlog
from msgspec import Struct

from corral.agent.system import beside
from corral.core.images.backends import ComfyUIEntry, Entry, WebUIEntry, tasks_of
from corral.core.images.pipeline import STAGES
from corral.core.worker import MOST_MODELS, ImageServer, Model
from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.kinds import offer_of
from corral.runtime.process import system

log = structlog.get_logger("corral.agent.image_servers")

EVERY_S = 30.0
FIRST_S = 3.0
"""How long the first registration waits for them."""
FIRST_LOOKS = 4
"""How many looks a server that was never seen may take to come up by itself, after a reboot."""
AGAIN = 20
"""How many looks later it is started once more: one that comes up is not to be disturbed."""
TROUBLE = 512
UNHEARD = "It has not answered yet."
PAUSE_S = 300.0
"""A server takes its time to come up, minutes with a large model; nobody starts it twice meanwhile.
One that did come up and is down again is started at once."""
HERE = frozenset({"127.0.0.1", "localhost", "::1"})


class Offer(Struct, frozen=True):
    stages: frozenset[str]
    models: tuple[Model, ...]


Server = WebUIEntry | ComfyUIEntry


def servers_of(backends: Iterable[Entry]) -> list[Server]:
    return [one for one in backends if isinstance(one, Server)]


class ServerOffers:
    def __init__(
        self,
        entries: Sequence[Entry],
        looked: Callable[[], None],
        down: Callable[[str, str], None],
        answers: Callable[[str], None],
    ) -> None:
        self._entries = tuple(entries)
        self._servers = servers_of(entries)
        self._offers: dict[str, Offer] = {}
        """By address."""
        self._said: dict[str, str] = {}
        self._missed: dict[str, int] = {}
        """How often one that never answered was down."""
        self._looked = looked
        """Told after each look."""
        self._down = down
        """Told the kind and the address of a server that does not come up by itself."""
        self._answers = answers
        """Told the address of one that does answer."""

    @property
    def tasks(self) -> tuple[str, ...]:
        lacking = {
            one.kind: frozenset(STAGES) - self._offers[one.url].stages
            for one in self._servers
            if one.url in self._offers
        }
        return tasks_of((one.kind for one in self._entries), lacking)

    @property
    def servers(self) -> tuple[ImageServer, ...]:
        return tuple(
            ImageServer(
                one.kind,
                one.url,
                self._said.get(one.url, "" if one.url in self._offers else UNHEARD),
            )
            for one in self._servers
        )

    @property
    def in_order(self) -> tuple[Entry, ...]:
        """All backends by preference, those that did not answer last behind the others."""

        def silent(one: Entry) -> bool:
            return isinstance(one, Server) and bool(self._said.get(one.url))

        return tuple(sorted(self._entries, key=silent))

    @property
    def models(self) -> tuple[Model, ...]:
        found = (model for offer in self._offers.values() for model in offer.models)
        return tuple({model.name: model for model in found}.values())[:MOST_MODELS]

    async def first(self) -> None:
        looking = asyncio.ensure_future(self._look())
        await asyncio.wait({looking}, timeout=FIRST_S if self._servers else None)

    async def run(self) -> None:
        while self._servers:
            await asyncio.sleep(EVERY_S)
            await self._look()
            self._looked()

    async def _look(self) -> None:
        for one in self._servers:
            try:
                offer = await beside(partial(survey, one), "image server")
            except Exception as error:
                self._say(one.url, str(error)[:TROUBLE])
                if isinstance(error, StageFailed) and error.code == "backend_down":
                    self._miss(one)
                continue
            self._say(one.url, "")
            self._answers(one.url)
            self._offers[one.url] = offer

    def _miss(self, server: Server) -> None:
        if server.url in self._offers:
            return
        missed = self._missed[server.url] = self._missed.get(server.url, 0) + 1
        if missed % AGAIN == FIRST_LOOKS:
            self._down(server.kind, server.url.rstrip("/"))

    def _say(self, url: str, trouble: str) -> None:
        if trouble and trouble != self._said.get(url):
            log.warning("image_server_does_not_answer", url=url, reason=trouble)
        elif not trouble and self._said.get(url):
            log.info("image_server_answers", url=url)
        self._said[url] = trouble


def survey(entry: Server) -> Offer:
    """In a thread. Raises where the server does not answer."""
    stages, models = offer_of(entry.options())
    named: dict[str, str] = {}
    for title, sha256 in models.items():
        name = model_name(title.replace("\\", "/"))
        # As files of models are named; and with the folders that a server puts before.
        named |= {name.rpartition("/")[2]: sha256, name: sha256}
    return Offer(
        stages=frozenset(stages),
        models=tuple(Model(name, sha256=sha256) for name, sha256 in named.items()),
    )


def listening(backends: Sequence[Entry]) -> Collection[int]:
    """Processes that listen at these servers' addresses: their VRAM is held for our jobs."""
    urls = [urlsplit(one.url) for one in servers_of(backends)]
    here = [url for url in urls if url.hostname in HERE]
    ports = {url.port or (443 if url.scheme == "https" else 80) for url in here}
    if not ports:
        return ()
    return {
        one.pid
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port in ports and one.pid
    }


class Restarts:
    """Starts servers again by the command their owner gave. Not from the job that found one down:
    what a job starts is confined with it and ends with it."""

    def __init__(self, entries: Sequence[Entry], environ: Mapping[str, str], said: Path) -> None:
        self._servers = servers_of(entries)
        self._environ = dict(environ)
        self._said = said
        """Gets the output of the commands."""
        self._tried: dict[str, float] = {}
        """By address."""
        self._tasks: set[asyncio.Task[None]] = set()

    def down(self, kind: str, said: str) -> None:
        """Of several, the one that `said` names: another may be in the middle of an image."""
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
                    **system.APART,
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
