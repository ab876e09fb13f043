"""One shape for every answer: JSON of our views, one body for every error, and both in OpenAPI."""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from corral.api.correlation import refused as logged
from corral.contract.plain import plain
from corral.core.errors import (
    BY_CODE,
    CorralError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    StorageFailed,
)
from corral.core.malformed import MALFORMED

log = structlog.get_logger()

CLOSE = frozenset({408, 413, 431})
"""After these the rest of the request is not waited for."""


class ErrorBody(msgspec.Struct):
    """What went wrong: a stable code, and a sentence that says what to do next."""

    code: str
    message: str
    job_id: str | None
    details: dict[str, Any]


class Error(msgspec.Struct):
    error: ErrorBody


def json(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(plain(value))


def refusal(error: CorralError) -> JSONResponse:
    headers = {"connection": "close"} if error.status in CLOSE else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.view(), error.status, headers=headers)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These errors, for the documentation of a route: which codes each status may carry."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        codes = (f"`{code}`" for code, cls in sorted(BY_CODE.items()) if cls.status == status)
        found[status] = answer(Error, f"One of {', '.join(codes)}.")
    return found


def answer(kind: Any, description: str) -> dict[str, Any]:
    """A view or a list of such, for the documentation of a route."""
    return {"description": description, "content": {"application/json": {"schema": _schema(kind)}}}


DOCUMENTED: dict[str, Any] = {}
"""The structs that routes take and answer with, as they named them."""


def _schema(kind: Any) -> dict[str, Any]:
    if get_origin(kind) is list:
        return {"type": "array", "items": _schema(get_args(kind)[0])}
    DOCUMENTED[kind.__name__] = kind
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def body(*structs: Any, example: Any = None) -> dict[str, Any]:
    """The body of a request, for the documentation of a route: one of these, or any object."""
    schemas = [_schema(struct) for struct in structs] or [{"type": "object"}]
    content = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}}
STREAMED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers of an answer that comes as it is made."""


def body_of(data: bytes, kind: Any) -> Any:
    """A body as one of our structs, or InvalidRequest in one sentence."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        told, _, at = str(error).partition(" - at ")
        place = at.strip("`")
        where = f" at {place}" if place else ""
        raise InvalidRequest(
            f"The body is not as it should be{where}: {_lowered(told.replace('`', ''))}.",
            details={"at": place} if place else None,
        ) from None
    except MALFORMED as error:
        raise InvalidRequest(f"The body is no JSON: {error}.") from None


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def handle_errors(app: FastAPI) -> None:
    """Whatever goes wrong in a request is answered in the one shape, with its line in the log."""

    async def told(request: Request, error: Exception) -> JSONResponse:
        meant = logged(_meant(request, error), f"{request.method} {request.url.path}"[:200])
        answer = refusal(meant)
        if isinstance(meant, MethodNotAllowed) and isinstance(error, HTTPException):
            answer.headers.update(error.headers or {})
        return answer

    known = (CorralError, OSError, ClientDisconnect, RequestValidationError, HTTPException)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, told)


def _meant(request: Request, error: Exception) -> CorralError:
    path = request.url.path[:200]
    match error:
        case CorralError():
            return error
        case OSError():
            log.warning("request_not_stored", path=request.url.path, error=str(error))
            return StorageFailed(f"The controller could not store this: {error.strerror}.")
        case ClientDisconnect():
            return InvalidRequest("The request ended before its body did.")
        case RequestValidationError():
            found = [
                {"where": ".".join(map(str, one["loc"])), "what": str(one["msg"])}
                for one in error.errors()
            ]
            first = found[0]
            message = f"{first['where']} is not as it should be: {_lowered(first['what'])}."
            return InvalidRequest(message, details={"errors": found})
        case HTTPException(status_code=404):
            return NotFound(f"There is nothing at {path}. /openapi.json lists all there is.")
        case HTTPException(status_code=405):
            return MethodNotAllowed(f"{path} does not take {request.method[:20]}.")
        case HTTPException():
            return InvalidRequest(str(error.detail))
    return CorralError("A mistake of ours; the controller's log has its traceback.")
