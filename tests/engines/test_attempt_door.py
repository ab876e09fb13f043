"""The attempts' door as a stranger meets it: plain requests to a real controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from corral import Client
from corral.api.attempt_door import AttemptDoor
from corral.controller.auth.tokens import MESSAGES, AttemptTokens
from corral.core.errors import Unavailable
from corral.core.limits import InputLimits
from corral.protocol.attempt_messages import MOST_BYTES, MOST_MESSAGES
from tests.api.rest import Answer, Rest
from tests.engines.test_standalone import live
from tests.eventually import eventually
from tests.live import LiveController


class Door:
    """An attempt whose process is this test."""

    def __init__(self, here: LiveController, client: Client) -> None:
        self.handle = client.submit(abs, (-1,), cpus=0.1)
        path = here.home / "children" / f"{self.handle.id}.1.json"
        eventually(path.exists, "a ticket")
        self.ticket = json.loads(path.read_bytes())
        self.root = f"/attempts/{self.handle.id}/1"
        self._here = here

    def __call__(self, method: str, path: str, body: object = None, token: str = "") -> Answer:
        return Rest(self._here, token or self.ticket["token"])(method, self.root + path, body)

    def post(self, *messages: object, after: int = 0) -> Answer:
        return self("POST", "/messages", {"after": after, "messages": list(messages)})


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    with live(tmp_path_factory.mktemp("door") / "home") as started:
        (started.home / "children" / "nobody").touch()
        yield started


@pytest.fixture
def client(here: LiveController) -> Iterator[Client]:
    with Client(home=here.home) as made:
        yield made


@pytest.fixture
def door(here: LiveController, client: Client) -> Door:
    return Door(here, client)


HELLO = {"type": "output", "stream": "stdout", "text": "hello\n"}
ENDED = {"type": "ended", "at": 1.0, "seconds": 1.0}


def test_an_order_has_all_that_it_takes(door: Door) -> None:
    order = door("GET", "/order").json
    assert order["document"]["work"]["type"] == "function"
    assert (order["job"], order["attempt"]) == (door.handle.id, 1)
    assert order["duration_s"] == 3600.0
    assert order["needs"]["cpus"] == 0.1
    assert order["token"] != door.ticket["token"]


def test_a_result_that_is_told_is_the_jobs_result(door: Door) -> None:
    digest = door("GET", "/order").json["digest"]
    assert door.post({"type": "began", "at": 1.0}, HELLO).json == {"received": 6}
    assert door.post(HELLO, HELLO, {**ENDED, "digest": digest}).json == {"received": 12}
    assert door.handle.result(20) is None
    assert "".join(door.handle.logs()) == "hello\nhello\n"


def test_other_tokens_open_nothing(door: Door, client: Client) -> None:
    for_transfers = door("GET", "/order").json["token"]
    other = Door(door._here, client).ticket["token"]
    for method, path in (("GET", "/order"), ("POST", "/messages")):
        for token in (for_transfers, other, door._here.token, "x"):
            assert door(method, path, {}, token).status == 403
        assert Rest(door._here, "")(method, door.root + path, {}).status == 401
    assert door("PUT", "/result", b"").status == 403, "and this one opens nothing else"


NONE = (
    b"",
    b"{",
    b"[]",
    b'{"messages": {}}',
    b'{"messages": [{"type": "odd"}]}',
    b'{"messages": [{"type": "output", "stream": 1}]}',
    b'{"messages": [{"type": "output", "stream": "stdout", "more": 1}]}',
    b'{"messages": [{"type": "output", "stream": "stdout", "text": "\\ud800"}]}',
    b'{"messages": [{"type": "missing", "size": -1}]}',
    b'{"messages": [{"type": "progress", "fraction": 7}]}',
    b'{"after": -1}',
    b'{"wait_s": 3600}',
    json.dumps({"messages": [HELLO] * (MOST_MESSAGES + 1)}).encode(),
    json.dumps({"messages": [{**ENDED, "digest": ""}, HELLO]}).encode(),
)


def test_what_is_no_batch_is_refused_and_counts_for_nothing(door: Door) -> None:
    found = {body[:80]: door("POST", "/messages", body).status for body in NONE}
    assert found == {body[:80]: 422 for body in NONE}
    assert door.post().json == {"received": 0}


def test_a_batch_that_is_too_large_is_refused(door: Door) -> None:
    size = str(MOST_BYTES + 1)  # which is all that is looked at
    rest = Rest(door._here, door.ticket["token"])
    answer = rest("POST", f"{door.root}/messages", b"{}", Content_Length=size)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert door.post().json == {"received": 0}


def test_a_gap_is_answered_with_what_is_expected(door: Door) -> None:
    assert door.post(HELLO).json == {"received": 6}
    assert door.post(HELLO, after=60).json == {"received": 6}
    assert door.post({"type": "missing", "size": 54}, HELLO, after=6).json == {"received": 66}
    text = "".join(door.handle.logs(follow=False))
    assert text.startswith("hello\n")
    assert "54 bytes left out" in text
    assert text.endswith("hello\n")


def test_of_an_attempt_that_is_over_nobody_hears_more(door: Door) -> None:
    door.handle.cancel()
    answer = door("POST", "/messages", {"wait_s": 20})
    assert answer.json["cancel"]["grace_s"] == 10
    failure = {"code": "cancelled", "message": "It was."}
    door.post({**ENDED, "digest": "", "failure": failure})
    eventually(lambda: door.handle.status().state == "cancelled", "the end")
    for again in (door.post(HELLO), door("POST", "/messages", {}), door("GET", "/order")):
        assert (again.status, again.code) == (409, "conflict")
        assert "is over" in again.json["error"]["message"]


async def test_an_attempt_whose_engine_is_not_there_asks_again_later() -> None:
    held = SimpleNamespace(held=True)
    head = SimpleNamespace(id="j", attempt=1, engine="processes", state=held)
    parts: Any = SimpleNamespace(
        store=SimpleNamespace(head=lambda job: head),
        loop=SimpleNamespace(early={}),
        blobs=None,
        limits=InputLimits(),
    )
    tokens = AttemptTokens("key")
    door = AttemptDoor(parts, tokens, {}, artifact_limit=0)
    shown = f"Bearer {tokens.issue('j', 1, MESSAGES)}".encode()
    request = Request({"type": "http", "headers": [(b"authorization", shown)]})
    for asked in (door.order, door.messages):
        with pytest.raises(Unavailable, match="not among `engines`"):
            await asked(request, "j", 1)
