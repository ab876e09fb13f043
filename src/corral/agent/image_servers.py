"""Image servers of this worker: what they have, asked beside the work, and restarting them.

While one is silent, what it alone has is withdrawn: its jobs wait at the controller, and other work
goes on here. A job that finds one silent says so, and sets off its restart; one that stays silent
is started again from here.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import structlog
from msgspec import Struct

from corral.agent.system import beside
from corral.core.images.backends import ComfyUIEntry, Entry, WebUIEntry, tasks_of
from corral.core.images.pipeline import STAGES
from corral.core.worker import MOST_MODELS, MOST_NAMES, ImageServer, Model, Withdrawn
from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.kinds import names_of, offer_of, tidy
from corral.runtime.process import system

log = structlog.get_logger("corral.agent.image_servers")

EVERY_S = 30.0
NAMES_EVERY_S = 600.0
"""LoRAs and the like: their lists are long, and say a mistake sooner, no more."""
SILENT_EVERY_S = 1.0
"""A silent one is asked so often: its jobs go on as soon as it answers."""
FIRST_S = 3.0
"""How long the first registration waits for them."""
COMES_UP_S = 120.0
"""How long a silent server may take to come up by itself, after a reboot."""
HANGS_S = 600.0
"""And one that takes connections and says nothing: it may read a model."""
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
        clock: Callable[[], float] = time.monotonic,
        turns: str = "",
    ) -> None:
        self._entries = tuple(entries)
        self._servers = servers_of(entries)
        self._offers: dict[str, Offer] = {}
        """By address."""
        self._said = {one.url: UNHEARD for one in self._servers}
        self._names: dict[str, dict[str, tuple[str, ...]]] = {}
        self._name_at: dict[str, float] = {}
        self._start_at: dict[str, float] = {}
        """When one that is down is started from here."""
        self._hurry = {one.url: asyncio.Event() for one in self._servers}
        self._clock = clock
        self._turns = turns
        """The folder where jobs take turns at a server."""
        self._looked = looked
        """Told after each look, and when one falls silent."""
        self._down = down
        """Told the kind and the address of a server that does not come up by itself."""
        self._answers = answers
        """Told the address of one that does answer."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._tasks_of(self._entries)

    def _tasks_of(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        lacking = {
            one.kind: frozenset(STAGES) - self._offers[one.url].stages
            for one in servers_of(entries)
            if one.url in self._offers
        }
        return tasks_of((one.kind for one in entries), lacking)

    def _is_silent(self, one: Entry) -> bool:
        return isinstance(one, Server) and bool(self._said[one.url])

    @property
    def servers(self) -> tuple[ImageServer, ...]:
        return tuple(
            ImageServer(one.kind, one.url, self._said[one.url], self._names.get(one.url, {}))
            for one in self._servers
        )

    @property
    def withdrawn(self) -> Withdrawn:
        silent = {url for url, said in self._said.items() if said}
        if not silent:
            return Withdrawn()
        there = [one for one in self._entries if not self._is_silent(one)]
        offers = [offer for url, offer in self._offers.items() if url not in silent]
        had = {model.name for offer in offers for model in offer.models}
        tasks = self._tasks_of(there)
        return Withdrawn(
            tasks=tuple(task for task in self.tasks if task not in tasks),
            models=tuple(model.name for model in self.models if model.name not in had),
        )

    @property
    def in_order(self) -> tuple[Entry, ...]:
        """All backends by preference, those that did not answer last behind the others."""
        return tuple(sorted(self._entries, key=self._is_silent))

    @property
    def models(self) -> tuple[Model, ...]:
        found = (model for offer in self._offers.values() for model in offer.models)
        return tuple({model.name: model for model in found}.values())[:MOST_MODELS]

    async def first(self) -> None:
        looking = asyncio.ensure_future(self._look())
        await asyncio.wait({looking}, timeout=FIRST_S if self._servers else None)

    async def run(self) -> None:
        """Each by itself: one that hangs keeps nobody from hearing that another is back."""
        await asyncio.gather(*map(self._watch, self._servers))

    async def _watch(self, server: Server) -> None:
        while True:
            hurry = self._hurry[server.url]
            hurry.clear()
            every_s = SILENT_EVERY_S if self._said[server.url] else EVERY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await hurry.wait()
            await self._ask(server)
            self._looked()

    async def _look(self) -> None:
        await asyncio.gather(*map(self._ask, self._servers))

    async def _ask(self, server: Server) -> None:
        try:
            offer = await beside(partial(survey, server), "image server")
        except Exception as error:
            self._say(server.url, str(error)[:TROUBLE])
            if isinstance(error, StageFailed) and error.code == "backend_down":
                self._miss(server, HANGS_S if error.hangs else COMES_UP_S)
            return
        self._say(server.url, "")
        self._start_at.pop(server.url, None)
        self._answers(server.url)
        self._offers[server.url] = offer
        if self._clock() >= self._name_at.get(server.url, 0.0):
            self._name_at[server.url] = self._clock() + NAMES_EVERY_S
            self._names[server.url] = await beside(partial(names_at, server), "image server")
        if self._turns:
            with suppress(Exception):  # the next look, or the next job, does it
                await beside(partial(tidy, server.options(), self._turns), "image server")

    def silent(self, kind: str, said: str) -> None:
        """A job found it so; all that it names are asked at once."""
        found = meant(self._servers, said) or [one for one in self._servers if one.kind == kind]
        for server in found:
            if not self._said[server.url]:
                self._say(server.url, said[:TROUBLE])
            self._hurry[server.url].set()
        self._looked()

    def _miss(self, server: Server, patience_s: float) -> None:
        now = self._clock()
        if now >= self._start_at.setdefault(server.url, now + patience_s):
            self._start_at[server.url] = now + PAUSE_S
            self._down(server.kind, server.url.rstrip("/"))

    def _say(self, url: str, trouble: str) -> None:
        if trouble and trouble != self._said[url]:
            log.warning("image_server_does_not_answer", url=url, reason=trouble)
        elif not trouble and self._said[url]:
            log.info("image_server_answers", url=url)
        self._said[url] = trouble


def meant(servers: Iterable[Server], said: str) -> list[Server]:
    return [one for one in servers if f"{one.url.rstrip('/')} " in f"{said} "]


def names_at(entry: Server) -> dict[str, tuple[str, ...]]:
    """All else that it has, in a thread. They are a courtesy."""
    try:
        told = names_of(entry.options())
    except Exception as error:
        log.warning("image_server_names_unknown", url=entry.url, reason=str(error)[:TROUBLE])
        return {}
    found = {kind: tuple(dict.fromkeys(has)) for kind, has in told.items()}
    return {
        kind: has
        for kind, has in found.items()
        if len(has) <= MOST_NAMES and all(len(name) <= TROUBLE for name in has)
    }


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
        server = next(iter(meant(alike, said) or alike), None)
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
