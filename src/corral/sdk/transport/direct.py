"""The shortest road of a synchronous program: a blocking call, in the caller's own thread.

A trip to the event loop of the other calls would be a tenth of a short job's two milliseconds.
What does not work at once goes the usual road; the idempotency key makes that the same job.
"""

from __future__ import annotations

from typing import Any

import grpc

from corral.contract import corral_pb2 as pb
from corral.contract import service
from corral.contract.read_views import read, read_event
from corral.core.job import State
from corral.sdk import remote_errors, results
from corral.sdk.handles import ProgressSink, Sink, shower
from corral.sdk.submit.outgoing import HOLD_S, OutgoingJob
from corral.sdk.transport.connection import Connection
from corral.sdk.transport.local_door import LocalSockets, socket_of

NOTHING = object()


class Direct:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sockets: LocalSockets | None = None
        self._channel: grpc.Channel | None = None
        self._submit: Any = None

    def close(self) -> None:
        channel, self._channel, self._submit = self._channel, None, None
        found, self._sockets = self._sockets, None
        if found is not None:
            found.close()
        if channel is not None:
            channel.close()

    def submit(self, job: OutgoingJob, hold_s: float = 0.0) -> pb.SubmitJobsReply | None:
        """The answer, or None where the usual road has to be taken."""
        if job.large() or not self._connection.has(job.code):
            return None
        request = job.request(hold_s)
        reply = self._by_local_door(request, job) or self._by_grpc(request, job)
        if reply is not None:
            self._connection.met = True
        return reply

    def _by_local_door(
        self, request: pb.SubmitJobsRequest, job: OutgoingJob
    ) -> pb.SubmitJobsReply | None:
        found = self._sockets  # another thread may find it broken meanwhile
        if found is None:
            door = self._connection.door
            path = socket_of(door.home, door.address)
            if path is None:
                return None
            found = self._sockets = LocalSockets(path, door.token)
        try:
            return found.submit(request.SerializeToString(), job.correlation_id)
        except (OSError, ValueError):
            self._sockets = None
            return None

    def _by_grpc(
        self, request: pb.SubmitJobsRequest, job: OutgoingJob
    ) -> pb.SubmitJobsReply | None:
        if self._submit is None:
            self._channel = self._connection.open(grpc)
            self._submit = service.stub(self._channel).SubmitJobs
        try:
            metadata = self._connection.metadata(job.correlation_id)
            reply: pb.SubmitJobsReply = self._submit(request, metadata=metadata)
        except grpc.RpcError:
            return None
        return reply

    def run(
        self, job: OutgoingJob, output: Sink, progress: ProgressSink
    ) -> tuple[Any, pb.SubmitJobsReply | None]:
        """The value of a job that ended at once, or NOTHING and how far it has come."""
        show = shower(output, progress)
        reply = self.submit(job, HOLD_S)
        if reply is None or not reply.events or not reply.events[-1].HasField("ended"):
            return NOTHING, reply
        ended = reply.events[-1].ended
        returned = ended.HasField("result")
        if ended.state == State.SUCCEEDED and returned and not ended.result.data:
            return NOTHING, reply
        for message in reply.events:
            if message.HasField("output") or message.HasField("progress") or message.state.code:
                event = read_event(message)
                assert event is not None
                show(event)
        if ended.state != State.SUCCEEDED:
            failure = read(ended.failure) if ended.HasField("failure") else None
            raise remote_errors.error_of(reply.job_ids[0], ended.state, failure)
        if not returned:
            return None, reply
        return results.value_of(ended.result.data, job_id=reply.job_ids[0]), reply


class NotDirect(Direct):
    """The plain way alone: everything goes the usual road."""

    def submit(self, job: OutgoingJob, hold_s: float = 0.0) -> pb.SubmitJobsReply | None:
        return None
