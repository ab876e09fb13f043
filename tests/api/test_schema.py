"""schemathesis over the OpenAPI document: whatever is asked, no server error, every answer as it is
documented, and every job that was acknowledged is still there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from corral.api.http import document
from tests.api.described import described
from tests.api.rest import Rest
from tests.live import LiveController

pytestmark = pytest.mark.long

load_all_checks()
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 60
REFUSALS = {"no_gpu_workers", "exceeds_all_workers"}
"""503 is what such a submission is meant to get, and not a server's error."""


SCHEMA = schemathesis.openapi.from_dict(json.loads(json.dumps(document(described()))))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """A controller of its own: what is asked here would pause and cancel what others need."""
    with LiveController(tmp_path_factory.mktemp("asked")) as controller:
        rest = Rest(controller)
        ENDED["job"] = rest.submit("print(1)")
        rest.ended(ENDED["job"])
        yield controller
        _nothing_is_lost(rest)


ACKNOWLEDGED = set[str]()
ENDED: dict[str, str] = {}
"""A job whose streams end."""


def _nothing_is_lost(rest: Rest) -> None:
    assert ACKNOWLEDGED, "not one submission was accepted"
    found, cursor = set[str](), ""
    while True:
        page = rest("GET", f"/jobs?limit=1000&cursor={cursor}").json
        found |= {job["job_id"] for job in page["jobs"]}
        if page["next"] is None:
            break
        cursor = page["next"]
    assert found >= ACKNOWLEDGED


def asking() -> Callable[..., None]:
    """A new function for each operation: as the cases of one, pytest gives them one name, and what
    hands tests out to several processes counts by name."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any, asked: LiveController) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {asked.token}"}
        if case.path == "/jobs/{job}/events" or (case.query or {}).get("follow"):
            case.path_parameters = {**case.path_parameters, "job": ENDED["job"]}
        answer = case.call(base_url=asked.url, timeout=20)
        if answer.status_code == 503 and answer.json()["error"]["code"] in REFUSALS:
            return
        case.validate_response(answer, checks=CHECKS)
        if case.method == "POST" and case.path == "/jobs" and answer.status_code == 202:
            ACKNOWLEDGED.update(answer.json()["job_ids"])

    return ask


for found in SCHEMA.get_all_operations():
    assert isinstance(found, Ok), found
    operation = found.ok()
    only = SCHEMA.include(path=operation.path, method=operation.method)
    words = operation.path.translate(str.maketrans("/", "_", "{}"))
    globals()[f"test_{operation.method}{words}"] = only.parametrize()(asking())
