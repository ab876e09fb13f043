"""Orders and ends of attempts: one declaration, whoever encodes and whoever reads."""

from __future__ import annotations

import json
from typing import get_args, get_type_hints

import pytest
from msgspec import Raw

from corral.agent.runners.frames import ErrorFrame, Result, decode_lines
from corral.agent.runners.orders import encode_line
from corral.core.job import KINDS, Blob, Failure
from corral.runtime.channels.frames import error_frame, result_frame
from corral.runtime.functions import result_bytes
from corral.runtime.order import (
    Cancel,
    Document,
    Endpoint,
    Order,
    Renderer,
    decode_cancel,
    decode_order,
)

DOCUMENT = b'{"work": {"type":"script","package":{"sha256":"ab","size":1},"entry":"m.py"}, "x":1.0}'
FULL = Order(
    "job-1",
    3,
    Raw(DOCUMENT),
    Endpoint("https://here:1", "/there.pem", "bucket", 7.5),
    "token",
    "/runs/r1",
    "ab12",
    "corr-ä",
    {"in.png": "/assets/1"},
    Renderer("here", "550.1", [{"type": "sketch", "folder": "/turns"}]),
)


def test_an_order_arrives_as_it_was_sent() -> None:
    line = encode_line(FULL)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert DOCUMENT in line, "nothing on a worker changes a document"
    read = decode_order(line)
    assert read.document == json.loads(DOCUMENT)
    for name in set(Order.__dataclass_fields__) - {"document"}:
        assert getattr(read, name) == getattr(FULL, name), name


def test_what_an_order_leaves_open_has_its_default() -> None:
    told = {"job": "j", "attempt": 1, "document": {}, "token": "t", "work_dir": "/r"}
    read = decode_order(json.dumps({**told, "endpoint": {"url": "http://here"}}).encode())
    assert read.endpoint == Endpoint("http://here")
    assert (read.checkpoint, read.inputs, read.renderer) == ("", {}, None)


def test_fields_of_a_newer_sender_are_passed_over() -> None:
    told = json.loads(encode_line(FULL))
    told["colour"] = told["endpoint"]["colour"] = told["renderer"]["colour"] = "blue"
    read = decode_order(json.dumps(told).encode())
    assert (read.job, read.endpoint, read.renderer) == ("job-1", FULL.endpoint, FULL.renderer)


def test_an_order_without_what_it_needs_is_refused() -> None:
    told = json.loads(encode_line(FULL))
    del told["token"]
    with pytest.raises(TypeError, match="token"):
        decode_order(json.dumps(told).encode())


def test_a_cancel_arrives_as_it_was_sent() -> None:
    line = encode_line(Cancel("job-1", 3))
    assert decode_cancel(line) == Cancel("job-1", 3)
    assert json.loads(line)["cancel"] is True


def test_a_runner_knows_every_kind_of_work_and_no_other() -> None:
    works = get_args(get_type_hints(Document)["work"])
    known = {name for work in works for name in get_args(get_type_hints(work)["type"])}
    assert known == set(KINDS)


@pytest.mark.parametrize("retire", [False, True])
def test_the_agent_reads_the_end_that_a_runner_writes(retire: bool) -> None:
    data = b'"retire":false'  # in the result itself
    failure = {"code": "exception", "message": '"retire":false', "exit_code": None}
    told = (
        result_frame(None, retire=retire)
        + result_frame(result_bytes(data, lambda: pytest.fail("small")), retire=retire)
        + result_frame({"sha256": "ab", "size": 1 << 30}, retire=retire)
        + error_frame(failure, retire=retire)
    )
    assert decode_lines(told) == [
        Result(None, retire),
        Result(Blob.of(data), retire),
        Result(Blob("ab", 1 << 30), retire),
        ErrorFrame(Failure("exception", '"retire":false'), retire),
    ]
