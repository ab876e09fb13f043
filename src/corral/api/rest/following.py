"""What a job writes and leaves: /jobs/{id}/events, /output, /result, /artifacts."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from corral.api.http_protocol import hold_little
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import BINARY, STREAMED, answer, errors, json
from corral.api.views import event_of, filled
from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.plain import plain_event
from corral.contract.read_views import read, read_event
from corral.controller.output.pages import Cursor, Page, Seen
from corral.controller.output.text import gap
from corral.core.errors import RangeNotSatisfiable
from corral.core.frames import OutputFrame, decode_frame

KEEP_ALIVE_S = 15.0
"""How often a quiet stream says that it is still there."""
PIECE = 8 << 10
"""Bytes of a stream in one piece: what its reader has not taken yet stays in memory."""
CHUNK = 256 << 10
MAX_ATTEMPT = 1_000_000

Read = Callable[[int, int], AsyncIterator[bytes]]
"""Bytes from one offset up to another."""

_RANGED: dict[int | str, dict[str, Any]] = {
    200: {"description": "Everything.", "content": {"application/octet-stream": BINARY}},
    206: {"description": "The range.", "content": {"application/octet-stream": BINARY}},
}
_TEXT = {"schema": {"type": "string"}}
_PLAIN = "text/plain; charset=utf-8"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_EVENTS = {
    "schema": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
        "required": ["id", "event", "data"],
    }
}


def routes(parts: Parts) -> list[APIRouter]:
    router = routing.router(parts, "jobs")
    _events(router, parts)
    _output(router, parts)
    _files(router, parts)
    return [router]


def _events(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/jobs/{job}/events",
        summary="Everything that happens to a job, as server-sent events",
        responses={
            200: {"description": "To its end.", "content": {"text/event-stream": _EVENTS}},
            204: {"description": "It has ended, and nothing lies behind the cursor."},
            **errors(404, 429),
        },
    )
    async def events(
        job: str,
        after: Annotated[str, Query(description="A cursor: go on behind it.")] = "",
        last_event_id: Annotated[str, Header()] = "",
        *,
        request: Request,
    ) -> Response:
        """`id` is the event's cursor, `event` its kind, `data` what `corral logs --json` prints.
        A browser that reconnects goes on behind the last one it saw."""
        cursor = Cursor.parse(last_event_id or after)
        found = await parts.queue.find(job)
        head = parts.store.head(found)
        if head.state.ended and cursor.seq >= head.last_seq:
            return Response(status_code=204)
        parts.streams.check()
        watching = parts.feed.watch(found, cursor)
        hold_little(request.scope)
        return StreamingResponse(
            _sent(parts, watching), media_type="text/event-stream", headers=STREAMED
        )


def _output(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/jobs/{job}/output",
        summary="What a job wrote",
        responses={
            200: {"description": "Everything.", "content": {"text/plain": _TEXT}},
            206: {"description": "The range.", "content": {"text/plain": _TEXT}},
            **errors(404, 416, 429),
        },
    )
    async def output(
        request: Request,
        job: str,
        stream: Annotated[
            Literal["", "stdout", "stderr"], Query(description="One of the two. [both]")
        ] = "",
        attempt: Annotated[int, Query(ge=0, le=MAX_ATTEMPT, description="[the last one]")] = 0,
        follow: Annotated[bool, Query(description="Until the job ends.")] = False,
    ) -> Response:
        """stdout and stderr as they came, by default of the last attempt; `Range` takes a part.
        With `follow` all attempts to the end of the job, without ranges."""
        found = await parts.queue.find(job)
        if follow:
            parts.streams.check()
            texts = _followed(parts, found, stream)
            hold_little(request.scope)
            return StreamingResponse(texts, media_type=_PLAIN, headers=STREAMED)
        await parts.feed.mark_missing(found)
        attempt = attempt or parts.store.head(found).attempt
        total = await parts.output.size(found, attempt, stream)

        reader = partial(parts.output.read, found, attempt, stream)
        return _ranged(request, reader, total, media_type=_PLAIN)


def _files(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/jobs/{job}/result",
        summary="The bytes a job returned",
        responses={**_RANGED, **errors(404, 416)},
    )
    async def result(request: Request, job: str) -> Response:
        """For a function: its value, cloudpickled. Unpickle only what you trust."""
        found = await parts.queue.find(job)
        kept = parts.store.result(found)
        if kept.data is not None:
            reader = partial(_inline, kept.data)
        else:
            reader = partial(_file, parts.blobs.open_path(kept.sha256))
        return _saved(request, reader, kept.sha256, kept.size, "result")

    @router.get(
        "/jobs/{job}/artifacts",
        summary="The artifacts of a job",
        responses={200: answer(list[views.Artifact], "A page of them."), **errors(404)},
    )
    async def artifacts(
        job: str,
        limit: Annotated[int, Query(ge=1, description="[1,000]")] = 0,
        after: Annotated[str, Query(description="The last name of the page before.")] = "",
    ) -> Response:
        """In the order in which they were stored; a page that is not full is the last."""
        found = await parts.queue.find(job)
        limit = min(limit or parts.limits.page, parts.limits.page)
        page = await parts.artifact_index.page(found, after=after, limit=limit)
        return json([read(filled(pb.ArtifactView, one)) for one in page])

    @router.get(
        "/jobs/{job}/artifacts/{name:path}",
        summary="One artifact",
        responses={**_RANGED, **errors(404, 416)},
    )
    async def artifact(request: Request, job: str, name: str) -> Response:
        found = await parts.queue.find(job)
        kept = await parts.artifact_index.find(found, name)
        parts.artifacts.check(kept)
        reader = partial(parts.artifacts.read, kept)
        return _saved(request, reader, kept.file_sha256, kept.size, name.rpartition("/")[2])


def _saved(request: Request, read: Read, sha256: str, size: int, name: str) -> Response:
    """A browser saves it and never shows it: it came from a job."""
    attachment = f"attachment; filename*=utf-8''{quote(name, safe='')}"
    headers = {"content-disposition": attachment, "etag": f'"{sha256}"'}
    return _ranged(request, read, size, media_type="application/octet-stream", headers=headers)


def _ranged(
    request: Request, read: Read, total: int, *, media_type: str, headers: Mapping[str, str] = {}
) -> Response:
    start, end, status = 0, total, 200
    more = {**headers, "accept-ranges": "bytes", "x-content-type-options": "nosniff"}
    if (wanted := _wanted(request.headers.get("range"), total)) is not None:
        (start, end), status = wanted, 206
        more["content-range"] = f"bytes {start}-{end - 1}/{total}"
    more["content-length"] = str(end - start)
    return StreamingResponse(read(start, end), status, headers=more, media_type=media_type)


def _wanted(header: str | None, total: int) -> tuple[int, int] | None:
    """The one range that is asked for, its end excluded. None for all, also for several ranges and
    what is no range, as HTTP allows."""
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        start, end = max(0, total - int(match[2])), total
    else:
        start = int(match[1])
        if match[2] and int(match[2]) < start:
            return None
        end = min(total, int(match[2]) + 1) if match[2] else total
    if start >= end:
        raise RangeNotSatisfiable(
            f"There are {total:,} bytes; none of those asked for.", details={"size": total}
        )
    return start, end


async def _file(path: Path, start: int, end: int) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        file.seek(start)
        while start < end:
            piece = await asyncio.to_thread(file.read, min(CHUNK, end - start))
            if not piece:
                return
            start += len(piece)
            yield piece


async def _inline(data: bytes, start: int, end: int) -> AsyncIterator[bytes]:
    yield data[start:end]


async def _sent(parts: Parts, watching: AsyncIterator[Sequence[Seen]]) -> AsyncIterator[bytes]:
    names = parts.store.world.names
    with parts.streams.one():
        async for seen in with_pauses(watching):
            if seen is None:
                yield b": still here\n\n"
                continue
            told = _messages(seen, names)
            del seen
            for start in range(0, len(told), PIECE):
                yield told[start : start + PIECE]


def _messages(seen: Sequence[Seen], names: Mapping[str, str]) -> bytes:
    """As they are sent; of a page that many see, made once."""
    kept = seen.encoded if isinstance(seen, Page) else {}
    if "messages" not in kept:
        sent = (event for one in seen if (event := event_of(one, names)) is not None)
        told = (plain_event(read) for one in sent if (read := read_event(one)) is not None)
        kept["messages"] = b"".join(map(_message, told))
    messages: bytes = kept["messages"]
    return messages


def _message(event: dict[str, Any]) -> bytes:
    told = (event["cursor"].encode(), event["event"].encode(), msgspec.json.encode(event))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % told


async def _followed(parts: Parts, job: str, stream: str) -> AsyncIterator[bytes]:
    with parts.streams.one():
        watching: Any = parts.feed.watch(job, Cursor())
        async with contextlib.aclosing(watching):
            async for seen in watching:
                for one in seen:
                    frame = decode_frame(one.frame) if one.frame else None
                    if one.skipped:
                        yield gap(one.skipped)
                    elif isinstance(frame, OutputFrame) and stream in ("", frame.stream):
                        yield frame.data or frame.text.encode()


async def with_pauses(
    watching: Any, pause_s: float = KEEP_ALIVE_S
) -> AsyncIterator[Sequence[Seen] | None]:
    """What is seen, and None whenever nothing was for a while."""
    coming: asyncio.Future[Sequence[Seen]] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(watching))
            done, _ = await asyncio.wait({coming}, timeout=pause_s)
            if not done:
                yield None
                continue
            try:
                seen = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield seen
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await watching.aclose()
