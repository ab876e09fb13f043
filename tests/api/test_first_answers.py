"""A controller that stops before REST was loaded."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, cast

import pytest
from starlette.types import ASGIApp, Message

from corral.api.first_answers import FirstAnswers
from corral.controller.output.loop_turns import LoopTurns


async def nothing() -> Any:
    raise AssertionError("nobody asks for it")


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_whoever_waits_for_rest_hears_that_it_stops(kind: str) -> None:
    begun, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load() -> ASGIApp:
        loop.call_soon_threadsafe(begun.set)
        over.wait()
        return cast(ASGIApp, None)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    answers = FirstAnswers(cast(Any, None), nothing, load, LoopTurns())
    scope = {"type": kind, "path": "/jobs", "method": "GET", "headers": []}
    asking = asyncio.create_task(answers(scope, nothing, send))
    await begun.wait()
    asking.cancel()
    try:
        await asking
    finally:
        over.set()
    if kind == "http":
        assert sent[0]["status"] == 503
        assert json.loads(sent[1]["body"])["error"]["code"] == "unavailable"
    else:
        assert (sent[0]["type"], sent[0]["code"]) == ("websocket.close", 1001)


async def test_of_a_crowd_one_begins_and_one_ends_in_each_turn_of_the_loop() -> None:
    """Thousands ask at once, and hang up at once when the program that held them ends."""
    gone, begun, ended = asyncio.Event(), list[None](), list[None]()

    async def rest(scope: Any, receive: Any, send: Any) -> None:
        begun.append(None)
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.append(None)

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    answers = FirstAnswers(cast(Any, None), nothing, lambda: rest, LoopTurns())
    await answers.loaded()
    scope = {"type": "http", "path": "/jobs", "method": "GET", "headers": []}
    crowd = [asyncio.create_task(answers(scope, receive, cast(Any, nothing))) for _ in range(50)]

    async def most_in_a_turn(done: list[None]) -> int:
        most = before = 0
        while before < len(crowd):
            await asyncio.sleep(0)
            most, before = max(most, len(done) - before), len(done)
        return most

    assert await most_in_a_turn(begun) <= 2
    gone.set()
    assert await most_in_a_turn(ended) <= 2
    await asyncio.gather(*crowd)
