"""What the routes are made of, and the door they all stand behind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from corral.api.auth import bearer
from corral.api.rest.answers import errors
from corral.api.roles import ROUTES
from corral.api.streams import Streams
from corral.controller.access import Access
from corral.controller.artifacts import Artifacts
from corral.controller.assets import Assets
from corral.controller.blobs import Blobs
from corral.controller.feed import Feed
from corral.controller.herd import Herd
from corral.controller.learning import Learnings
from corral.controller.listing import Listing
from corral.controller.loop import Loop
from corral.controller.output_text import OutputText
from corral.controller.plans import Plans
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.core.access import Caller
from corral.core.errors import InvalidRequest
from corral.settings import LimitSettings


@dataclass(frozen=True)
class Parts:
    store: Store
    blobs: Blobs
    assets: Assets
    artifacts: Artifacts
    feed: Feed
    queue: Queue
    loop: Loop
    listing: Listing
    output: OutputText
    access: Access
    herd: Herd
    streams: Streams
    limits: LimitSettings
    package_limit: int
    plans: Plans
    version: str
    started_at: float
    learnings: Learnings

    def router(self, tag: str) -> APIRouter:
        """Routes behind the door: who calls is known before a byte of the body is read."""
        return APIRouter(
            tags=[tag], route_class=guarded(self.access), responses=errors(401, 403, 422, 503)
        )


def guarded(access: Access) -> type[APIRoute]:
    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            roles = {method: ROUTES[method, self.path] for method in self.methods or ()}
            known = [field.alias for field in self.dependant.query_params]

            async def checked(request: Request) -> Response:
                caller = access.caller(bearer(request.headers.get("authorization")))
                caller.needs(roles[request.method])
                request.state.caller = caller
                for name in request.query_params:
                    if name not in known:  # a misspelt filter would choose everything
                        raise InvalidRequest(f"There is no parameter {name[:80]!r} here{said}.")
                return await handle(request)

            said = f"; there are {', '.join(known)}" if known else ""
            return checked

    return Guarded


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller
