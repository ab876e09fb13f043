"""The door that all routes stand behind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from corral.api.auth import bearer
from corral.api.parts import Parts
from corral.api.rest.answers import errors
from corral.api.roles import ROUTES
from corral.core.access import Caller
from corral.core.errors import InvalidRequest


def router(parts: Parts, tag: str, token_of: Callable[[str | None], str] = bearer) -> APIRouter:
    """Routes behind the door: who calls is known before a byte of the body is read."""

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            roles = {method: ROUTES[f"{method} {self.path}"] for method in self.methods or ()}
            known = [field.alias for field in self.dependant.query_params]

            async def checked(request: Request) -> Response:
                caller = parts.access.caller(token_of(request.headers.get("authorization")))
                caller.needs(roles[request.method])
                request.state.caller = caller
                for name in request.query_params:
                    if name not in known:  # a misspelt filter would choose everything
                        raise InvalidRequest(f"There is no parameter {name[:80]!r} here{said}.")
                return await handle(request)

            said = f"; there are {', '.join(known)}" if known else ""
            return checked

    return APIRouter(tags=[tag], route_class=Guarded, responses=errors(401, 403, 422, 503))


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller
