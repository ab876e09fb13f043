"""The service without the SDK: as any gRPC client in any language sees it."""

from __future__ import annotations

import grpc

from corral.contract import corral_pb2 as pb
from corral.contract import service
from tests.live import LiveController


def bearer(controller: LiveController) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {controller.token}"),)


def submit_and_wait(controller: LiveController, job: pb.JobSubmission) -> pb.Ended:
    with grpc.insecure_channel(controller.address) as channel:
        events = service.stub(channel).SubmitJob(job, metadata=bearer(controller))
        for event in events:
            if event.HasField("ended"):
                ended: pb.Ended = event.ended
                return ended
    raise AssertionError("the stream closed before the job ended")
