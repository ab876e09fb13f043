"""The gRPC service `corral.v1.Orchestrator`: what SDK and CLI speak."""

from __future__ import annotations

from corral.api.rpc.files import FileCalls
from corral.api.rpc.images import ImageCalls
from corral.api.rpc.jobs import JobCalls
from corral.api.rpc.operating import OperatingCalls


class Orchestrator(JobCalls, FileCalls, ImageCalls, OperatingCalls):
    """All of it."""
