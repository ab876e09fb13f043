"""The wire between controller and agent: every message survives it, and nothing else passes."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.job import Blob, Failure, Needs
from corral.core.worker import GPU, Capabilities
from corral.protocol import messages as wire

SENT_BY_WORKERS = [
    wire.WorkerRegister(
        worker_id="w",
        software_version="0.1.0",
        runner_protocol=wire.VERSION,
        capabilities=Capabilities(cpus=2, memory_gb=8, gpus=(GPU("GPU-1", "RTX 3090", 24),)),
        attempts=(("j", 1),),
    ),
    wire.WorkerHeartbeat(load=0.5, running=1),
    wire.JobStarted(job="j", attempt=1, at=1.0, devices=("GPU-1",)),
    wire.JobOutput(job="j", attempt=1, stream="stdout", data=b"\xff\x00"),
    wire.JobProgress(job="j", attempt=1, fraction=0.5, metrics={"loss": 0.1}),
    wire.JobCompleted(job="j", attempt=1, at=1, seconds=1, digest="d", result=Blob.of(b"\x80")),
    wire.JobFailed(
        job="j", attempt=1, at=1, seconds=1, digest="d", failure=Failure("exception", "m")
    ),
    wire.JobReturned(job="j", attempt=1, reason="leaving"),
    wire.WorkerGoodbye(),
]
SENT_BY_CONTROLLERS = [
    wire.WorkerWelcome(name="w", heartbeat_s=5.0, grace_s=30.0, url="http://127.0.0.1:8700"),
    wire.JobDispatch(
        job="j",
        attempt=1,
        document=msgspec.Raw(b'{"work":{}}'),
        digest="d",
        token="t",
        needs=Needs(gpu_tenths=3),
    ),
    wire.JobCancel(job="j", attempt=1),
    wire.JobRecall(job="j", attempt=1),
    wire.ResultReceived(job="j", attempt=1),
    wire.Drain(grace_s=3.0),
]


def test_every_message_is_here() -> None:
    assert {type(one) for one in SENT_BY_WORKERS} == set(get_args(wire.FromWorker))
    assert {type(one) for one in SENT_BY_CONTROLLERS} == set(get_args(wire.FromController))


def test_many_messages_share_a_frame() -> None:
    assert wire.decode_from_worker(wire.encode(SENT_BY_WORKERS)) == SENT_BY_WORKERS
    back = wire.decode_from_controller(wire.encode(SENT_BY_CONTROLLERS))
    assert wire.encode(back) == wire.encode(SENT_BY_CONTROLLERS)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{}",
        b"[{}]",
        b'[{"type":"JobExploded"}]',
        b'[{"type":"JobStarted","job":"j","attempt":"one","at":1}]',
        b'[{"type":"JobStarted","job":"j"}]',
        wire.encode(SENT_BY_CONTROLLERS),
    ],
)
def test_anything_else_is_refused(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_from_worker(frame)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(json_values, max_size=3) | json_values)
@settings(max_examples=200, deadline=None)
def test_no_json_surprises_the_decoder(value: object) -> None:
    """It decodes or it is refused; nothing else ever comes out."""
    try:
        decoded = wire.decode_from_worker(json.dumps(value).encode())
    except msgspec.DecodeError:
        return
    assert all(isinstance(one, wire.Message) for one in decoded)


def test_every_message_about_an_attempt_carries_its_number() -> None:
    for kind in (*get_args(wire.FromWorker), *get_args(wire.FromController)):
        if kind.__name__.startswith("Job") or kind is wire.ResultReceived:
            assert {"job", "attempt"} <= set(kind.__struct_fields__)


@pytest.mark.parametrize("size", ["1180591620717411303424", "-5"])
def test_sizes_that_nobody_could_show_are_refused(size: str) -> None:
    said = (
        '[{"type":"JobCompleted","job":"j","attempt":1,"at":1,"seconds":1,"digest":"d",'
        '"result":{"sha256":"0","size":' + size + "}}]"
    )
    with pytest.raises(msgspec.ValidationError):
        wire.decode_from_worker(said.encode())
