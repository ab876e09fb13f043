"""What the image servers of this worker have, asked beside the work: stages and models.

One that does not answer keeps what it last said: whether it is down is for the jobs to find out,
which also sets off its restart. Where it never answered, no job comes; then it is we who have it
started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from msgspec import Struct

from corral.agent.background_thread import beside
from corral.core.images.backends import ComfyUIEntry, Entry, WebUIEntry, tasks_of
from corral.core.images.pipeline import STAGES
from corral.core.model import MOST_MODELS, Model
from corral.core.worker import ImageServer
from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.kinds import offer_of

log = structlog.get_logger("corral.agent.image_servers.offers")

EVERY_S = 30.0
FIRST_S = 3.0
"""So long the first introduction waits for them."""
FIRST_LOOKS = 4
"""So many looks a server that was never seen may take to come up by itself, after a reboot."""
AGAIN = 20
"""And after so many more it is started once more: one that comes up is not to be disturbed."""
TROUBLE = 512
UNHEARD = "It has not answered yet."


class Offer(Struct, frozen=True):
    """What a server has."""

    stages: frozenset[str]
    models: tuple[Model, ...]


class ServerOffers:
    def __init__(
        self,
        entries: Sequence[Entry],
        looked: Callable[[], None],
        down: Callable[[str, str], None],
        answers: Callable[[str], None],
    ) -> None:
        self._entries = tuple(entries)
        self._servers = [one for one in entries if isinstance(one, WebUIEntry | ComfyUIEntry)]
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
            return isinstance(one, WebUIEntry | ComfyUIEntry) and bool(self._said.get(one.url))

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

    def _miss(self, server: WebUIEntry | ComfyUIEntry) -> None:
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


def survey(entry: WebUIEntry | ComfyUIEntry) -> Offer:
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
