"""The wire between controller and agent: every message survives it, and nothing else passes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from corral.core.job import Assignment, Blob, Failure, Needs, QueueClass
from corral.core.worker import GPU, Capabilities
from corral.engines.engine import Attempt
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
    wire.JobExtend(job="j", attempt=1, duration_s=7200.0),
    wire.ResultReceived(job="j", attempt=1),
    wire.OutputReceived(upto=(("j", 1, 12),)),
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


def test_a_dispatch_says_all_that_an_engine_is_given() -> None:
    attempt = Attempt(
        job="j",
        attempt=3,
        document=Raw(b'{"a": 1.0}'),
        digest="d",
        token="t",
        needs=Needs(gpus=2),
        above_vram_gb=4.0,
        duration_s=5.0,
        queue_class=QueueClass.INTERACTIVE,
        priority=6,
        checkpoint="c",
        correlation_id="i",
        secrets={"KEY": "value"},
        worker="w",
    )
    said = wire.JobDispatch.of(attempt)
    (heard,) = wire.decode_from_controller(wire.encode([said]))
    assert isinstance(heard, wire.JobDispatch)
    assert bytes(heard.document) == b'{"a": 1.0}'
    for name in Assignment.__struct_fields__:
        said_of_it = getattr(attempt, name)
        if name != "document":
            assert getattr(heard, name) == said_of_it, name
    assert b'"worker"' not in wire.encode(said)
    assert "value" not in repr(attempt) + repr(heard)


GPU_0 = {"uuid": "0", "name": "g", "vram_gb": 8}


@pytest.mark.parametrize(
    "said",
    [
        {"gpus": [GPU_0] * 257},
        {"gpus": [{**GPU_0, "vram_gb": -1}]},
        {"gpus": [{**GPU_0, "vram_gb": 1e300}]},
        {"gpus": [{**GPU_0, "name": "x" * 513}]},
        {"cpus": 1e300},
        {"memory_gb": 1e300},
        {"labels": ["a"] * 257},
        {"labels": ["a" * 513]},
        {"workloads": ["a"] * 257},
        {"task_types": ["a"] * 257},
        {"enforced": {str(n): "" for n in range(257)}},
        {"models_present": ["a"] * 10_001},
        {"model_paths": ["/"] * 257},
    ],
    ids=str,
)
def test_what_a_worker_says_of_itself_is_bounded(said: dict[str, object]) -> None:
    fine = {"cpus": 1, "memory_gb": 1}
    register = {"worker_id": "w", "software_version": "0", "runner_protocol": "1"}
    for capabilities, refused in ((fine, False), ({**fine, **said}, True)):
        frame = [{"type": "WorkerRegister", **register, "capabilities": capabilities}]
        with pytest.raises(msgspec.ValidationError) if refused else nullcontext():
            wire.decode_from_worker(json.dumps(frame).encode())


@pytest.mark.parametrize(
    "said",
    [
        {"readings": [{"uuid": "0"}] * 257},
        {"readings": [{"uuid": "0", "free_gb": -1}]},
        {"readings": [{"uuid": "0", "temperature_c": 1e300}]},
        {"readings": [{"uuid": "0", "utilisation": -1}]},
        {"models": [{"name": "m"}] * 10_001},
        {"models": [{"name": "m" * 4097}]},
        {"models": [{"name": "m", "size": -1}]},
        {"models_loaded": ["m"] * 10_001},
        {"load": -1},
        {"load": 1e300},
        {"running": -1},
        {"warm": 10**18},
    ],
    ids=lambda said: str(said)[:40],
)
def test_what_a_heartbeat_says_is_bounded(said: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.decode_from_worker(json.dumps([{"type": "WorkerHeartbeat", **said}]).encode())


def test_attempts_that_a_worker_claims_are_bounded() -> None:
    can = Capabilities(cpus=1, memory_gb=1)
    for count, refused in ((wire.MOST_ATTEMPTS, False), (wire.MOST_ATTEMPTS + 1, True)):
        claimed = (("j", 1),) * count
        register = wire.WorkerRegister("w", "0", wire.VERSION, can, attempts=claimed)
        with pytest.raises(msgspec.ValidationError) if refused else nullcontext():
            wire.decode_from_worker(wire.encode([register]))


@pytest.mark.parametrize("size", ["1180591620717411303424", "-5"])
def test_sizes_that_nobody_could_show_are_refused(size: str) -> None:
    said = (
        '[{"type":"JobCompleted","job":"j","attempt":1,"at":1,"seconds":1,"digest":"d",'
        '"result":{"sha256":"0","size":' + size + "}}]"
    )
    with pytest.raises(msgspec.ValidationError):
        wire.decode_from_worker(said.encode())
