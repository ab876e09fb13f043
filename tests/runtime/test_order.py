"""Orders and ends of attempts: one declaration, whoever encodes and whoever reads."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Raw

from corral.agent.runners.frames import ErrorFrame, Result, decode_lines
from corral.agent.runners.orders import encode_line
from corral.core.job import KINDS, Blob, Failure
from corral.runtime.channels.frames import decode, error_frame, frame
from corral.runtime.functions import result_bytes
from corral.runtime.order import Cancel, Document, Order

DOCUMENT = b'{"work": {"type":"script","package":{"sha256":"ab","size":1},"entry":"m.py"}, "x":1.0}'
FULL: Order[Any] = {
    "job": "job-1",
    "attempt": 3,
    "document": Raw(DOCUMENT),
    "endpoint": {
        "url": "https://here:1",
        "certificate": "/there.pem",
        "artifacts": "bucket",
        "patience_s": 7.5,
    },
    "token": "token",
    "work_dir": "/runs/r1",
    "checkpoint": "ab12",
    "correlation_id": "corr-ä",
    "inputs": {"in.png": "/assets/1"},
    "code": "/assets/2",
    "renderer": {
        "worker": "here",
        "driver": "550.1",
        "backends": [{"type": "sketch", "folder": "/turns"}],
    },
}


def test_an_order_arrives_as_it_was_sent() -> None:
    line = encode_line(FULL)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert DOCUMENT in line, "nothing on a worker changes a document"
    assert decode(line) == {**FULL, "document": json.loads(DOCUMENT)}
    assert FULL.keys() == get_type_hints(Order).keys()


def test_a_cancel_arrives_as_it_was_sent() -> None:
    line = encode_line(Cancel(job="job-1", attempt=3, cancel=True))
    assert decode(line) == Cancel(job="job-1", attempt=3, cancel=True)
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
        frame("result", result=None, retire=retire)
        + frame("result", result=result_bytes(data, lambda: pytest.fail("small")), retire=retire)
        + frame("result", result={"sha256": "ab", "size": 1 << 30}, retire=retire)
        + error_frame(failure, retire=retire)
    )
    assert decode_lines(told) == [
        Result(None, retire),
        Result(Blob.of(data), retire),
        Result(Blob("ab", 1 << 30), retire),
        ErrorFrame(Failure("exception", '"retire":false'), retire),
    ]
