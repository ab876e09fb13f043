"""Corral and all that it needs, for `pip install --no-index --find-links`: this controller's own
environment, as a page of links and the wheels that they lead to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from html import escape
from typing import IO

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from corral import wheel, wheelhouse
from corral.api.auth import bearer_or_password
from corral.api.first_answers import Once
from corral.api.parts import Parts
from corral.api.rest import routing

WHEEL = "application/zip"
PIECE_BYTES = 1024 * 1024


def routes(parts: Parts) -> APIRouter:
    router = routing.router(parts, "wheels", bearer_or_password)
    own_wheel = Once(wheel.built)
    making = asyncio.Lock()
    """One at a time: a large one takes a processor for a second or two."""

    @router.get("/wheels/", include_in_schema=False)
    async def page() -> HTMLResponse:
        listed = [(await own_wheel()).name, *await asyncio.to_thread(wheelhouse.names)]
        links = "".join(f'<a href="{escape(one)}">{escape(one)}</a><br>\n' for one in listed)
        return HTMLResponse(f"<!DOCTYPE html><title>Wheels of Corral</title>\n{links}")

    @router.get("/wheels/{name}", include_in_schema=False)
    async def one(name: str) -> Response:
        ours = await own_wheel()
        if name == ours.name:
            return Response(ours.data, media_type=WHEEL)
        async with making:
            file = await asyncio.to_thread(wheelhouse.made, name)
        size = {"Content-Length": str(file.seek(0, os.SEEK_END))}
        file.seek(0)
        return StreamingResponse(_pieces(file), headers=size, media_type=WHEEL)

    return router


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
