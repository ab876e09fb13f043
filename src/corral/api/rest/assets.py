"""/assets: input files, stored ahead of the jobs that name them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import answer, body_of, errors, json


class AssetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A file that is about to be sent, or one of the shared root."""

    sha256: str = ""
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    path: str = ""


class FoundAsset(msgspec.Struct):
    """Known: name it in `inputs`. If not: PUT its bytes to `put_url`, or to /assets if that is
    empty."""

    known: bool
    sha256: str
    size: int
    path: str = ""
    put_url: str = ""


class StoredAsset(msgspec.Struct):
    sha256: str
    size: int


STRUCTS: tuple[Any, ...] = (AssetBody, FoundAsset, StoredAsset)
_BODY = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/AssetBody"}}},
}
_BYTES = {
    "required": True,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


def routes(parts: Parts) -> APIRouter:
    router = routing.router(parts, "assets")

    @router.post(
        "/assets",
        summary="Whether an input file is here, and where it goes if not",
        responses={200: answer("FoundAsset", "Here or not."), **errors(404, 408, 413, 507)},
        openapi_extra={"requestBody": _BODY},
    )
    async def find(request: Request) -> Response:
        asked = body_of(await incoming.whole(request, parts.limits), AssetBody)
        found = await parts.assets.find(asked.sha256, asked.size, asked.path)
        if found is not None:
            return json(FoundAsset(True, found.sha256, found.size, found.path))
        parts.queue.check_room()
        put_url = await parts.assets.place(asked.sha256, asked.size)
        return json(FoundAsset(False, asked.sha256, asked.size, put_url=put_url))

    @router.put(
        "/assets",
        status_code=201,
        summary="Store an input file",
        responses={201: answer("StoredAsset", "Stored."), **errors(408, 413, 507)},
        openapi_extra={"requestBody": _BYTES},
    )
    async def put(
        request: Request,
        sha256: Annotated[str, Query(description="Refused if the bytes have another.")] = "",
    ) -> Response:
        parts.queue.check_room()
        pieces = incoming.pieces(request, parts.limits)
        blob = await parts.assets.put(pieces, expected=sha256 or None)
        return json(StoredAsset(blob.sha256, blob.size), 201)

    return router
