"""HTTP: all routes in one application, with its OpenAPI document."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse

from corral.api.first_answers import Health
from corral.api.parts import Parts
from corral.api.rest import cluster, following, images, jobs, routing, wheels
from corral.api.rest.answers import DOCUMENTED, handle_errors
from corral.api.workers import joining


def application(
    *, attempts: APIRouter, health: Health, parts: Parts, metrics: APIRouter
) -> FastAPI:
    app = FastAPI(
        title="Corral",
        version=parts.version,
        summary="One place to send GPU work to.",
        description=(
            'Every error is `{"error": {code, message, job_id, details}}`; codes are stable. '
            "Give the token as `Authorization: Bearer …`."
        ),
        openapi_url=None,
    )
    # Before all others, which are gone through for each request: attempts ask most.
    app.include_router(attempts)
    handle_errors(app)
    for module in (jobs, following, images, cluster):
        for router in module.routes(parts):
            app.include_router(router)
    about = routing.router(parts, "about")

    @about.get("/openapi.json", summary="This document", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(document(app))

    @about.get(
        "/corral.proto",
        summary="What gRPC clients are generated from",
        response_class=PlainTextResponse,
    )
    async def proto() -> str:
        return resources.files("corral.contract").joinpath("corral.proto").read_text("utf-8")

    app.include_router(about)

    @app.get("/health", operation_id="health", summary="Whether the controller is well")
    async def get_health() -> JSONResponse:
        """Open to everybody: it says nothing about jobs but how many there are."""
        status, body = await health()
        return JSONResponse(body, status)

    app.include_router(metrics)
    app.include_router(joining.routes(parts.herd, parts.limits))
    app.include_router(wheels.routes(parts))
    return app


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's of the routes, and msgspec's of what they answer."""
    if app.openapi_schema is None:
        found = app.openapi()
        _, schemas = msgspec.json.schema_components(
            DOCUMENTED.values(), ref_template="#/components/schemas/{name}"
        )
        components = found.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas)
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        for operation in (one for path in found["paths"].values() for one in path.values()):
            if operation["operationId"].startswith("health"):
                operation["security"] = []
    return app.openapi()
