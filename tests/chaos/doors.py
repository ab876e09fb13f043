"""The three doors of a controller, each as a client that submits, looks, follows and reads.

A call returns what was answered, or raises one of `NO_ANSWER`: then nobody knows whether it was
taken, and the same key is sent again.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

import corral
from corral.contract import views
from corral.core.errors import CorralError, JobFailed
from corral.sdk.handles import Text
from corral.sdk.submit import packages
from tests.api.rest import Rest
from tests.chaos.history import Looked, Watched, now
from tests.network.machines import Cluster

NO_ANSWER = (CorralError, OSError, ValueError, KeyError, http.client.HTTPException)
PAGE = 500
ANSWER_S = 15.0
PAUSE_S = 0.1
_watches = itertools.count()


class Unanswered(OSError):
    """The door said something that is no answer."""


class Door(Protocol):
    name: str

    def submit(self, function: Any, args: tuple[Any, ...], key: str, **options: Any) -> str: ...

    def look(self, job: str) -> Looked: ...

    def all(self) -> Iterator[Looked]: ...

    def value(self, job: str) -> object: ...

    def follow(self, job: str) -> Iterator[Watched]: ...

    def output(self, job: str) -> str: ...

    def close(self) -> None: ...


class ByClient:
    """The SDK. From the controller's own home it submits by the local door and asks over gRPC; from
    a home that only knows a login, all of it goes over gRPC and TLS."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self._home = name, home
        self._client: corral.Client | None = None

    @property
    def _open(self) -> corral.Client:
        if self._client is None:
            self._client = corral.Client(home=self._home)
        return self._client

    def submit(self, function: Any, args: tuple[Any, ...], key: str, **options: Any) -> str:
        return str(self._open.submit(function, args, idempotency_key=key, name=key, **options).id)

    def look(self, job: str) -> Looked:
        asked = now()
        state = self._open.job(job).status().state
        return Looked(self.name, job, state, asked, now())

    def all(self) -> Iterator[Looked]:
        before = ""
        while True:
            asked = now()
            page = self._open.jobs(limit=PAGE, before=before)
            answered = now()
            if not page:
                return
            yield from (Looked(self.name, v.job_id, v.state, asked, answered) for v in page)
            before = page[-1].job_id

    def value(self, job: str) -> object:
        try:
            return self._open.job(job).result(timeout=ANSWER_S)
        except JobFailed as error:
            return error.failure.message if error.failure is not None else str(error)

    def follow(self, job: str) -> Iterator[Watched]:
        watch, text = next(_watches), Text()
        for event in self._open.job(job).events():
            yield Watched(
                watch,
                job,
                _cursor(event.cursor),
                "ended" if isinstance(event, views.Ended) else type(event).__name__,
                event.attempt,
                text(event) if isinstance(event, views.Output) else "",
                event.state if isinstance(event, views.Ended) else "",
            )

    def output(self, job: str) -> str:
        return ""  # the SDK reads it by following

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


class ByRest:
    name = "REST"

    def __init__(self, cluster: Cluster) -> None:
        self._ask = Rest(cluster.controller)

    def _json(self, method: str, path: str, body: object = None) -> Any:
        answer = self._ask(method, path, body)
        if answer.status >= 300:
            raise Unanswered(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
        return answer.json

    def submit(self, function: Any, args: tuple[Any, ...], key: str, **options: Any) -> str:
        sent = {
            "function": {"data": _text(packages.pickle_function(function))},
            "arguments": {"data": _text(packages.pickle_arguments(args, {}))},
        }
        body = {"function": sent, "idempotency_key": key, "name": key, "queue_class": "batch"}
        return str(self._json("POST", "/jobs", {**body, **options})["job_ids"][0])

    def look(self, job: str) -> Looked:
        asked = now()
        state = self._json("GET", f"/jobs/{job}")["state"]
        return Looked(self.name, job, state, asked, now())

    def all(self) -> Iterator[Looked]:
        cursor = ""
        while True:
            asked = now()
            page = self._json("GET", f"/jobs?limit={PAGE}&cursor={cursor}")
            answered = now()
            for one in page["jobs"]:
                yield Looked(self.name, one["job_id"], one["state"], asked, answered)
            cursor = page.get("next") or ""
            if not cursor:
                return

    def value(self, job: str) -> object:
        view = self._json("GET", f"/jobs/{job}")
        if view["state"] != "succeeded":
            return (view.get("failure") or {}).get("message", view["state"])
        answer = self._ask("GET", f"/jobs/{job}/result")
        if answer.status != 200:
            raise Unanswered(f"result of {job}: {answer.status}")
        return cloudpickle.loads(answer.body)

    def follow(self, job: str) -> Iterator[Watched]:
        """Server-sent events; a stream that breaks is opened again behind its last event."""
        watch, cursor = next(_watches), ""
        while True:
            with contextlib.suppress(*NO_ANSWER):
                for event in self._stream(job, cursor):
                    cursor = event["id"]
                    yield _watched(watch, job, event)
                    if event["event"] == "ended":
                        return
            time.sleep(PAUSE_S)

    def _stream(self, job: str, cursor: str) -> Iterator[dict[str, str]]:
        with self._ask.streamed(f"/jobs/{job}/events", Last_Event_ID=cursor) as lines:
            event: dict[str, str] = {}
            for line in lines:
                if line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif "id" in event:
                    yield event
                    event = {}

    def output(self, job: str) -> str:
        answer = self._ask("GET", f"/jobs/{job}/output")
        if answer.status != 200:
            raise Unanswered(f"output of {job}: {answer.status}")
        return answer.body.decode("utf-8", "replace")

    def close(self) -> None:
        pass


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _cursor(text: str) -> tuple[int, int, int]:
    record, attempt, offset = map(int, text.split("."))
    return record, attempt, offset


def _watched(watch: int, job: str, event: dict[str, str]) -> Watched:
    told = json.loads(event["data"])
    skipped = told.get("skipped") or 0
    gap = f"\n[… {skipped} bytes left out …]\n" if skipped else ""
    return Watched(
        watch,
        job,
        _cursor(event["id"]),
        event["event"],
        told.get("attempt", 0),
        gap + told.get("text", "") if event["event"] == "output" else "",
        told.get("state", "") if event["event"] == "ended" else "",
    )
