"""The correlation id of each call: taken from what came with it or made, and answered with."""

from __future__ import annotations

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral import correlation
from corral.core.errors import CorralError

log = structlog.get_logger()

MESSAGE = 500


class Correlated:
    """Plain ASGI: nothing is buffered, and what streams goes on streaming."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        told = headers.get(correlation.KEY.encode()) or headers.get(correlation.ALSO.encode(), b"")
        chosen = correlation.enter(told.decode("latin-1"))

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[correlation.KEY] = chosen
            await send(message)

        await self._app(scope, receive, answer)


def refused(error: CorralError, call: str) -> CorralError:
    """The error as it is answered, with the call's id in it; also writes its line in the log."""
    chosen = error.details.setdefault("correlation_id", correlation.current())
    told = {"job": error.job_id} if error.job_id else {}
    log.info(
        "call_refused",
        call=call,
        code=error.code,
        error=error.message[:MESSAGE],
        **told,
        correlation_id=chosen,
    )
    return error
