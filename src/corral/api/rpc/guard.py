"""What every call goes through: its correlation id, the caller's role, errors as statuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, TypeVar

import grpc

from corral import correlation
from corral.api.auth import bearer
from corral.api.correlation import refused
from corral.api.parts import Parts
from corral.api.roles import METHODS
from corral.contract.service import ERROR_KEY
from corral.core.access import Caller, Role
from corral.core.errors import CorralError, InvalidRequest

Context = Any
"""grpc.aio's ServicerContext, whose type parameters say nothing here."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")


_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def _enter(context: Context) -> str:
    """The call's correlation id, from its metadata or new; the answer names it too."""
    told = next((v for k, v in context.invocation_metadata() or () if k == correlation.KEY), "")
    chosen = correlation.enter(told)
    context.set_trailing_metadata(((correlation.KEY, chosen),))
    return chosen


async def _abort(context: Context, error: CorralError, call: str, correlation_id: str) -> None:
    code = _STATUS.get(error.status, grpc.StatusCode.INTERNAL)
    refused(error, call)
    trailer = ((ERROR_KEY, json.dumps(error.view())), (correlation.KEY, correlation_id))
    await context.abort(code, error.message, trailing_metadata=trailer)


def checked(request: Request) -> Request:
    if request is None:
        raise InvalidRequest("This is no message that the method takes; see corral.proto.")
    return request


def answers(
    method: Callable[Concatenate[Any, Request, ...], Awaitable[Reply]],
) -> Callable[[Any, Request, Context], Awaitable[Reply]]:
    """For one answer: checks the role, maps errors to statuses, passes `caller` if it is wanted."""
    role, wants_caller = METHODS[method.__name__], "caller" in signature(method).parameters

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> Reply:
        correlation_id = _enter(context)
        try:
            caller = self.caller(context.invocation_metadata(), role)
            return await method(self, checked(request), *(caller,) * wants_caller)
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)
            raise

    return guarded


def streams(
    method: Callable[Concatenate[Any, Request, ...], AsyncIterator[Reply]],
) -> Callable[[Any, Request, Context], AsyncIterator[Reply]]:
    """The same for an answer that streams; only so many of them may be open at once."""
    role, wants_caller = METHODS[method.__name__], "caller" in signature(method).parameters

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> AsyncIterator[Reply]:
        correlation_id = _enter(context)
        try:
            caller = self.caller(context.invocation_metadata(), role)
            checked(request)
            with self._parts.streams.one():
                async for reply in method(self, request, *(caller,) * wants_caller):
                    yield reply
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)

    return guarded


def _refusing(error: CorralError, call: str) -> Any:
    """A handler that reads nothing of a call. It takes streams: gRPC reads a single message before
    it asks, however long it is."""

    async def refuse(messages: Any, context: Context) -> None:
        await _abort(context, error, call, _enter(context))

    return grpc.stream_unary_rpc_method_handler(refuse)


class Calls:
    """Root of the groups of methods that make up the service."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def caller(self, metadata: Sequence[tuple[str, Any]] | None, role: Role) -> Caller:
        caller = self._parts.access.caller(bearer(dict(metadata or ()).get("authorization")))
        caller.needs(role)
        return caller

    def refuse(self, method: str, metadata: Sequence[tuple[str, Any]]) -> Any:
        """What answers a call that may not be made, before its message is read; None for others."""
        try:
            self.caller(metadata, METHODS[method])
        except CorralError as error:
            return _refusing(error, method)
        return None
