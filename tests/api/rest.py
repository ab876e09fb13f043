"""A client of REST as plain as curl: one request, the answer as it came."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from corral.joining import trust
from tests.live import LiveController


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the error it is; its body has the one shape of all errors."""
        found = self.json
        assert set(found) == {"error"}
        assert set(found["error"]) == {"code", "message", "job_id", "details"}
        assert found["error"]["message"].endswith((".", "?", "…")), found
        return str(found["error"]["code"])


class Rest:
    def __init__(self, controller: LiveController, token: str | None = None) -> None:
        self._controller, self._token = controller, token

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """`body` as JSON, or as it is where it is bytes."""
        door = urlsplit(self._controller.url)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        token = self._controller.token if self._token is None else self._token
        if token and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = self._connection(str(door.hostname), door.port)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    @contextlib.contextmanager
    def streamed(self, path: str, **headers: str) -> Iterator[Iterator[str]]:
        """The lines of an answer as they come, for as long as it is held open."""
        door = urlsplit(self._controller.url)
        token = self._controller.token if self._token is None else self._token
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
        connection = self._connection(str(door.hostname), door.port)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **sent})
            answer = connection.getresponse()
            if answer.status not in (200, 204):
                raise OSError(f"{path}: {answer.status}")
            yield (line.decode("utf-8", "replace").rstrip("\r\n") for line in answer)
        finally:
            connection.close()

    def _connection(self, host: str, port: int | None) -> http.client.HTTPConnection:
        certificate = str(self._controller.card.get("certificate") or "")
        if not certificate:
            return http.client.HTTPConnection(host, port, timeout=30)
        context = trust.context(Path(certificate).read_text())
        return http.client.HTTPSConnection(host, port, timeout=30, context=context)

    def submit(self, source: str, **more: object) -> str:
        """The id of a script that was accepted."""
        answer = self("POST", "/jobs", {"script": {"source": source}, **more})
        assert answer.status == 202, answer
        return str(answer.json["job_ids"][0])

    def ended(self, job: str) -> Any:
        """The job's view once it has ended: its stream of events ends with it."""
        self("GET", f"/jobs/{job}/events")
        return self("GET", f"/jobs/{job}").json
