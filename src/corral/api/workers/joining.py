"""What a bare machine asks of the controller: the scripts that make it a worker, and the Corral
that they install. The scripts hold nothing secret; the rest is for the invited and for workers."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from msgspec import Struct

from corral import wheel
from corral.api import incoming
from corral.api.auth import bearer
from corral.api.first_answers import Once
from corral.api.rest.answers import body_of
from corral.controller.auth.join_requests import KEPT_S
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.core.errors import NotFound
from corral.core.limits import InputLimits

CONSTRAINTS = "constraints.txt"
ANSWER_WITHIN_S = 10.0
SHORT = InputLimits(body_bytes=1000, body_s=10.0)
"""What is read of somebody who has shown nothing yet."""


class Enrolment(Struct, forbid_unknown_fields=True):
    name: str = ""


class Asking(Struct, forbid_unknown_fields=True):
    """A machine's first word: see corral.joining.pairing."""

    name: str
    commitment: str


class Revealing(Struct, forbid_unknown_fields=True):
    number: str


def routes(herd: WorkerAdmin, limits: InputLimits) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    _software(router, herd)
    _enrolling(router, herd, limits)
    return router


def _software(router: APIRouter, herd: WorkerAdmin) -> None:
    own_wheel = Once(wheel.built)

    async def script(name: str) -> PlainTextResponse:
        pin = herd.pin()
        made = await own_wheel()
        text = resources.files("corral.api").joinpath("scripts", name).read_text("utf-8")
        told = {"PIN": pin, "WHEEL": made.name, "SHA256": made.sha256, "VERSION": made.version}
        for word, value in told.items():
            text = text.replace(f"@{word}@", value)
        return PlainTextResponse(text)

    @router.get("/join")
    async def shell() -> PlainTextResponse:
        return await script("join.sh")

    @router.get("/join.ps1")
    async def powershell() -> PlainTextResponse:
        return await script("join.ps1")

    @router.get("/certificate")
    async def certificate() -> PlainTextResponse:
        """What vouches for the one that this connection shows: for whoever was told its fingerprint
        or that of its key."""
        herd.pin()
        return PlainTextResponse(herd.certificate)

    @router.get("/join/{name}")
    async def part(request: Request, name: str, worker: str = "") -> Response:
        """The wheel and what goes with it."""
        token = bearer(request.headers.get("authorization"))
        await herd.check_may_install(token, _address(request), worker)
        made = await own_wheel()
        if name == "software":
            found = {"version": made.version, "wheel": made.name, "sha256": made.sha256}
            return JSONResponse(found)
        if name == CONSTRAINTS:
            return PlainTextResponse(made.constraints)
        if name == made.name:
            return Response(made.data, media_type="application/zip")
        raise NotFound(f"There is no {name[:100]!r} here; the wheel is called {made.name}.")


def _enrolling(router: APIRouter, herd: WorkerAdmin, limits: InputLimits) -> None:
    @router.post("/enrol")
    async def enrol(request: Request) -> Response:
        """An invitation turns into a credential. The enrolment token opens nothing else."""
        token, address = bearer(request.headers.get("authorization")), _address(request)
        await herd.check_invited(token, address)
        wanted = body_of(await incoming.whole(request, limits), Enrolment)
        enrolled, credential = await herd.enrol(token, address, wanted.name)
        found = {"worker_id": enrolled.id, "name": enrolled.name, "credential": credential}
        return JSONResponse(found, 201)

    @router.post("/join-requests")
    async def ask(request: Request) -> Response:
        """Open: a machine that found us asks to be a worker. The operator has the last word."""
        asking = herd.requests
        wanted = body_of(await incoming.whole(request, SHORT), Asking)
        asked = asking.ask(wanted.name, _address(request), wanted.commitment)
        return JSONResponse({"id": asked.id, "number": asked.number, "kept_s": KEPT_S}, 201)

    @router.put("/join-requests/{asked}")
    async def reveal(request: Request, asked: str) -> Response:
        told = body_of(await incoming.whole(request, SHORT), Revealing)
        herd.reveal(asked, told.number)
        return JSONResponse({})

    @router.get("/join-requests/{asked}")
    async def answer(request: Request, asked: str) -> Response:
        """The credential, for the machine that asked, once it was confirmed."""
        number = bearer(request.headers.get("authorization"))
        card = await herd.requests.answer(asked, number, ANSWER_WITHIN_S)
        return JSONResponse({"worker": card})


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
