"""A worker of protocol version 1 as it first was: its frames word for word, and the fields that it
reads. Never changed: a controller that does not get along with it needs another version."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import ssl
from typing import Any

from corral.runtime.pipeline.blocking_websocket import BlockingWebSocket
from tests.eventually import PATIENCE_S

REGISTER = (
    '[{"type":"WorkerRegister","worker_id":"%s","software_version":"0.1.0","runner_protocol":"1",'
    '"capabilities":{"cpus":2.0,"memory_gb":4.0,"labels":["old"],"workloads":["python"],'
    '"platform":"linux","python":"3.11","enforced":{}},"name":"old"}]'
)
HEARTBEAT = '[{"type":"WorkerHeartbeat","load":0.5,"running":1}]'
STARTED = '[{"type":"JobStarted","job":"%s","attempt":%d,"at":1700000000.0}]'
OUTPUT = (
    '[{"type":"JobOutput","job":"%s","attempt":%d,"stream":"stdout","text":"an old worker\\n"}]'
)
COMPLETED = (
    '[{"type":"JobCompleted","job":"%s","attempt":%d,"at":1700000001.0,"seconds":1.0,"digest":"%s",'
    '"result":{"sha256":"%s","size":%d,"data":"%s"}}]'
)
GOODBYE = '[{"type":"WorkerGoodbye","reason":"done"}]'

READS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "WorkerWelcome": {"name": str, "heartbeat_s": (int, float), "grace_s": (int, float)},
    "JobDispatch": {
        "job": str,
        "attempt": int,
        "document": dict,
        "digest": str,
        "token": str,
        "needs": dict,
    },
    "ResultReceived": {"job": str, "attempt": int},
}
"""Fields without which it cannot work, of what it needs to hear."""


class OldWorker:
    def __init__(self, url: str, worker_id: str, credential: str, context: ssl.SSLContext) -> None:
        self._worker_id = worker_id
        headers = {"Authorization": f"Bearer {credential}"}
        self._socket = BlockingWebSocket(
            url,
            additional_headers=headers,
            ssl=context,
            compression=None,
            open_timeout=PATIENCE_S,
        )
        self._heard: list[dict[str, Any]] = []

    def register(self) -> dict[str, Any]:
        self._say(REGISTER % self._worker_id)
        return self.hears("WorkerWelcome")

    def works(self, value: object) -> str:
        """Takes one job and answers with a value; the job's id."""
        dispatch = self.hears("JobDispatch")
        job, attempt = dispatch["job"], dispatch["attempt"]
        data = pickle.dumps(value)
        shown = base64.b64encode(data).decode()
        sha256 = hashlib.sha256(data).hexdigest()
        self._say(HEARTBEAT)
        self._say(STARTED % (job, attempt))
        self._say(OUTPUT % (job, attempt))
        self._say(COMPLETED % (job, attempt, dispatch["digest"], sha256, len(data), shown))
        received = self.hears("ResultReceived")
        assert (received["job"], received["attempt"]) == (job, attempt)
        return str(job)

    def leaves(self) -> None:
        self._say(GOODBYE)
        self._socket.close()

    def _say(self, frame: str) -> None:
        self._socket.send(frame.encode())

    def hears(self, kind: str) -> dict[str, Any]:
        while not any(message["type"] == kind for message in self._heard):
            self._heard += json.loads(self._socket.recv(PATIENCE_S))
        found = next(message for message in self._heard if message["type"] == kind)
        self._heard.remove(found)
        for field, wanted in READS[kind].items():
            assert isinstance(found[field], wanted), (kind, field)
        return found
