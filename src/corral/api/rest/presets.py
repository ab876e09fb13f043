"""/presets: bases of plans that are kept under a name."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import answer, errors, json
from corral.contract import views
from corral.controller.images.presets import Preset


class PresetList(msgspec.Struct):
    """By name."""

    presets: list[views.PresetView]


STRUCTS: tuple[Any, ...] = (PresetList, Preset)
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "example": {"txt2img": {"model": "sketch", "steps": 20}},
        }
    },
}


def routes(parts: Parts) -> APIRouter:
    router = routing.router(parts, "presets")

    @router.get(
        "/presets",
        summary="List presets",
        responses={200: answer("PresetList", "All of them.")},
    )
    async def listed() -> Response:
        return json(PresetList([views.PresetView(*one) for one in parts.plans.presets.names()]))

    @router.get(
        "/presets/{name}",
        summary="One preset",
        responses={200: answer("Preset", "With its settings by stage."), **errors(404, 507)},
    )
    async def show(name: str) -> Response:
        return json(parts.plans.presets.get(name))

    @router.put(
        "/presets/{name}",
        summary="Save a preset, in the place of an older one",
        responses={200: answer("Preset", "Saved."), **errors(404, 408, 409, 413, 507)},
        openapi_extra={"requestBody": _BODY},
    )
    async def save(request: Request, name: str) -> Response:
        value = await incoming.whole(request, parts.limits)
        return json(await parts.plans.presets.save(name, value))

    @router.delete(
        "/presets/{name}",
        summary="Remove a preset",
        responses={200: answer("Preset", "As it was."), **errors(404, 507)},
    )
    async def remove(name: str) -> Response:
        return json(await parts.plans.presets.remove(name))

    return router
