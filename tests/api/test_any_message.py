"""hypothesis over gRPC: whatever message comes, an answer that says something, and nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corral.contract import corral_pb2 as pb
from corral.contract import service
from tests.live import LiveController

SERVICE = pb.DESCRIPTOR.services_by_name["Orchestrator"]
pytestmark = pytest.mark.long

STATUSES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,  # no worker could run it
    grpc.StatusCode.DEADLINE_EXCEEDED,  # a stream of something that waits
}
"""What a message may get. UNKNOWN and INTERNAL are mistakes of ours."""
PATIENCE_S = 0.15

CALL = pb.FunctionCall(function=pb.BlobRef(data=b"x"), arguments=pb.BlobRef(data=b"x"))
KNOWN: dict[str, str] = {}
"""An ended job's id, for messages that would otherwise only ever meet nothing."""
ACKNOWLEDGED: set[str] = set()

WORDS = st.sampled_from(
    [
        *("", "last", "main.py", "a.b:c", "interactive", "batch", "3.11", "read", "auto", "local"),
        *(
            "\0",
            "\x1b[31m",
            "🐎" * 5,
            "x" * 600,
            "0" * 64,
            "-1.-1.-1",
            "9" * 40,
            "../..",
            "%s",
            "'",
        ),
    ]
)
TEXTS = WORDS | st.text(max_size=20) | st.builds(lambda: KNOWN.get("job", "last"))
NUMBERS = st.floats() | st.sampled_from([0.0, 0.1, 0.5, 1.0, 3600.0, -1.0, 1e308])
_KINDS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: NUMBERS,
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-100, 100),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1) | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
}


def values(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """Any fields of a message with any values of their types."""
    fields = {field.name: _value(field) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields)


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    if field.message_type is not None:
        one: st.SearchStrategy[Any] = values(field.message_type)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = st.binary(max_size=40)
    else:
        one = _KINDS[field.cpp_type]
    return st.lists(one, max_size=3) if field.is_repeated else one


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """A controller of its own: messages may pause and cancel what others need."""
    with (
        LiveController(tmp_path_factory.mktemp("any")) as controller,
        grpc.insecure_channel(controller.address) as channel,
    ):
        job = pb.JobSubmission(function=CALL)
        events = list(service.stub(channel).SubmitJob(job, metadata=_token(controller)))
        KNOWN["job"] = events[-1].job_id
        yield controller
        assert len(ACKNOWLEDGED) > 10, "hardly a submission was accepted"
        _nothing_is_lost(service.stub(channel), controller)


def _token(controller: LiveController) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {controller.token}"),)


def _nothing_is_lost(stub: Any, controller: LiveController) -> None:
    found, before = set[str](), ""
    while True:
        request = pb.ListJobsRequest(limit=1000, before=before)
        jobs = stub.ListJobs(request, metadata=_token(controller)).jobs
        if not jobs:
            break
        found |= {job.job_id for job in jobs}
        before = jobs[-1].job_id
    assert found >= ACKNOWLEDGED
    assert stub.HealthCheck(pb.HealthRequest(), metadata=_token(controller)).status == "ok"


def _status(call: Any, sent: Any, controller: LiveController) -> grpc.StatusCode:
    """How one call ended; what it accepted is remembered."""
    try:
        answer = call(sent, metadata=_token(controller), timeout=PATIENCE_S)
        for one in answer if isinstance(answer, Iterator) else [answer]:
            if isinstance(one, pb.SubmitJobsReply):
                ACKNOWLEDGED.update(one.job_ids)
            elif isinstance(one, pb.JobEvent):
                ACKNOWLEDGED.add(one.job_id)
    except grpc.RpcError as error:
        status: grpc.StatusCode = error.code()
        return status
    return grpc.StatusCode.OK


def _mend(job: pb.JobSubmission) -> None:
    """Leaves a job that is accepted, whatever the rest of it says."""
    kept = pb.JobSubmission(function=CALL, gpus=60, wait=True)
    for field in ("user", "batch", "name"):
        setattr(kept, field, "".join(filter(str.isprintable, getattr(job, field)))[:64])
    job.CopyFrom(kept)


EXAMPLES = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("method", service.METHODS)
def test_any_message(asked: LiveController, method: str) -> None:
    descriptor = SERVICE.methods_by_name[method]
    message: Any = message_factory.GetMessageClass(descriptor.input_type)
    with grpc.insecure_channel(asked.address) as channel:
        call = getattr(service.stub(channel), method)

        @EXAMPLES
        @given(values(descriptor.input_type), st.booleans())
        def ask(fields: dict[str, Any], mended: bool) -> None:
            sent = message(**fields)
            if method == "SubmitJob":
                sent.ClearField("wait")  # what may wait would be waited for
                sent.queue_class = sent.queue_class and "interactive"
            elif method == "SubmitJobs" and mended:
                sent.ClearField("calls")
                sent.ClearField("hold_s")
                sent.jobs.add()
                for job in sent.jobs:
                    _mend(job)
            request: Any = iter([sent]) if descriptor.client_streaming else sent
            status = _status(call, request, asked)
            assert status in STATUSES, (status, sent)

        ask()


@pytest.mark.parametrize("method", service.METHODS)
def test_bytes_that_are_no_message(asked: LiveController, method: str) -> None:
    descriptor = SERVICE.methods_by_name[method]
    kind = service._arity(descriptor)
    with grpc.insecure_channel(asked.address) as channel:
        call = getattr(channel, kind)(f"/{service.SERVICE}/{method}")

        @EXAMPLES
        @given(st.binary(max_size=60))
        def ask(data: bytes) -> None:
            request: Any = iter([data]) if descriptor.client_streaming else data
            assert _status(call, request, asked) in STATUSES

        ask()


def test_what_no_method_takes_is_told_so(asked: LiveController) -> None:
    with grpc.insecure_channel(asked.address) as channel:
        call = getattr(channel, "unary_unary")(f"/{service.SERVICE}/GetJobStatus")  # noqa: B009
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff", metadata=_token(asked))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no message" in str(refused.value.details())
