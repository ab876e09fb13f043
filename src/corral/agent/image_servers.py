"""The image servers of this machine, looked at beside the work: which stages and models they have,
and which processes they are.

One that does not answer keeps what it last said: whether it is down is for the jobs to find out,
which also sets off its restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import psutil
import structlog
from msgspec import Struct

from corral.agent.beside import beside
from corral.agent.gpu_watch import Tenant
from corral.core.backends import ComfyUIEntry, Entry, WebUIEntry, tasks_of
from corral.core.model import MOST_MODELS, Model
from corral.core.pipeline import STAGES
from corral.runtime.models import model_name
from corral.runtime.pipeline.kinds import offer_of

log = structlog.get_logger("corral.agent.image_servers")

EVERY_S = 30.0
FIRST_S = 3.0
"""So long the first introduction waits for them."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Offer(Struct, frozen=True):
    """What a server has."""

    stages: frozenset[str]
    models: tuple[Model, ...]
    pid: int = 0
    """The process that listens; 0 where it is on another machine, or somebody else's."""


class ImageServers:
    def __init__(self, entries: Sequence[Entry], looked: Callable[[], None]) -> None:
        self._entries = tuple(entries)
        self._servers = [one for one in entries if isinstance(one, WebUIEntry | ComfyUIEntry)]
        self._offers: dict[str, Offer] = {}
        """By address."""
        self._said: dict[str, str] = {}
        self._looked = looked
        """Told after each look."""

    @property
    def tasks(self) -> tuple[str, ...]:
        lacking = {
            one.kind: frozenset(STAGES) - self._offers[one.url].stages
            for one in self._servers
            if one.url in self._offers
        }
        return tasks_of((one.kind for one in self._entries), lacking)

    @property
    def models(self) -> tuple[Model, ...]:
        found = (model for offer in self._offers.values() for model in offer.models)
        return tuple({model.name: model for model in found}.values())[:MOST_MODELS]

    def tenants(self) -> list[Tenant]:
        """Their VRAM is ours: it is what our jobs are rendered in."""
        return [Tenant(one.pid, (), False) for one in self._offers.values() if one.pid]

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
                self._say(one.url, str(error))
                continue
            self._say(one.url, "")
            self._offers[one.url] = offer

    def _say(self, url: str, trouble: str) -> None:
        if trouble and trouble != self._said.get(url):
            log.warning("image_server_does_not_answer", url=url, reason=trouble)
        elif not trouble and self._said.get(url):
            log.info("image_server_answers", url=url)
        self._said[url] = trouble


def survey(entry: WebUIEntry | ComfyUIEntry) -> Offer:
    """In a thread. Raises where the server does not answer."""
    stages, models = offer_of(entry.options())
    named = {model_name(name): sha256 for name, sha256 in models.items()}
    return Offer(
        stages=frozenset(stages),
        models=tuple(Model(name, sha256=sha256) for name, sha256 in named.items()),
        pid=listener(entry.url),
    )


def listener(url: str) -> int:
    """The process behind an address of this machine, as far as we may know."""
    place = urlsplit(url)
    if place.hostname not in LOOPBACK:
        return 0
    port = place.port or (443 if place.scheme == "https" else 80)
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port:
                return one.pid or 0
    except psutil.Error:
        return 0
    return 0
