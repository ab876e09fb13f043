"""The correlation id of each HTTP request: taken from its headers or made, and answered with."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral import correlation


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
