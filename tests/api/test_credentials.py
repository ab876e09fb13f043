"""What a worker's credential and an attempt's token are good for: being that worker, transferring
for that attempt, and nothing else of all that there is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

import corral
from corral.contract import service
from corral.controller.auth.tokens import AttemptTokens, kept_secret
from corral.home import Home, read_json
from corral.protocol import messages as wire
from tests.api.rest import Rest
from tests.api.test_doors import _answers, _request
from tests.api.test_local_door import connected
from tests.api.test_roles import BY_ATTEMPT, EVERY, OPEN, _filled
from tests.api.worker_door import Card, Door
from tests.eventually import eventually
from tests.live import LiveController


@pytest.fixture(scope="module")
def card(controller: LiveController) -> Card:
    return Card(controller, "needy")


@pytest.fixture(scope="module")
def attempt(controller: LiveController) -> Iterator[tuple[str, str]]:
    """A job that runs, and the token of its attempt."""
    tokens = AttemptTokens(kept_secret(Home(controller.home).transfer_key))
    with corral.Client(controller.address, controller.token) as client:
        job = client.submit(time.sleep, (600,))
        eventually(lambda: job.status().state == "running", "it runs")
        token = tokens.issue(job.id, 1)
        assert Rest(controller, token)("PUT", f"/attempts/{job.id}/1/result", b"x").status == 200
        yield job.id, token
        job.cancel()


@pytest.fixture(params=["credential", "attempt's token"])
def secret(request: pytest.FixtureRequest, card: Card, attempt: tuple[str, str]) -> str:
    return card.credential if request.param == "credential" else attempt[1]


ROUTES = [one for one in EVERY if one not in OPEN and not one[1].startswith(BY_ATTEMPT)]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_opens(controller: LiveController, secret: str, method: str, path: str) -> None:
    found = Rest(controller, secret)(method, _filled(path), b"{}")
    assert (found.status, found.code) == (401, "unauthorized")


@pytest.mark.parametrize("method", service.METHODS)
def test_no_method_opens(controller: LiveController, secret: str, method: str) -> None:
    metadata = (("authorization", f"Bearer {secret}"),)
    with grpc.insecure_channel(controller.address) as channel:
        asked = getattr(service.stub(channel), method)
        with pytest.raises(grpc.RpcError) as refused:
            _answers(asked(_request(method), metadata=metadata, timeout=10))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_local_door_stays_shut(controller: LiveController, secret: str) -> None:
    with connected(controller, secret) as line:
        assert line.recv(1) == b"", "it is hung up on"


TRANSFERS = [
    (method, path.removeprefix("/attempts/{job}/{attempt}/"))
    for method, path in EVERY
    if path.startswith(BY_ATTEMPT)
]


def test_the_transfers_are_all_here() -> None:
    assert len(TRANSFERS) >= 5


@pytest.mark.parametrize(("method", "path"), TRANSFERS)
def test_no_transfer_of_another_attempt(
    controller: LiveController,
    card: Card,
    attempt: tuple[str, str],
    method: str,
    path: str,
) -> None:
    job, token = attempt
    with corral.Client(controller.address, controller.token) as client:
        other = client.submit(abs, (-1,))
        other.result(20)
    path = path.replace("{sha256}", "0" * 64).replace("{name:path}", "x")
    for secret, where in (
        (card.credential, f"{job}/1"),
        (card.credential, f"{other.id}/1"),
        (token, f"{job}/2"),
        (token, f"{job}/0"),
        (token, f"{other.id}/1"),
        (token, "nobody/1"),
    ):
        found = Rest(controller, secret)(method, f"/attempts/{where}/{path}", b"x")
        assert (found.status, found.code) == (403, "forbidden"), where


def test_a_token_fetches_only_what_its_job_names(
    controller: LiveController, attempt: tuple[str, str]
) -> None:
    job, token = attempt
    stored = Rest(controller)("PUT", "/packages", b"somebody's code")
    assert stored.status in (200, 201)
    sha256 = stored.json["sha256"]
    found = Rest(controller, token)("GET", f"/attempts/{job}/1/packages/{sha256}")
    assert (found.status, found.code) == (403, "forbidden")


def test_nobody_else_can_be_that_worker(
    controller: LiveController, card: Card, attempt: tuple[str, str]
) -> None:
    """Nor can it be another: not the controller's own machine, nor one that joined."""
    other = Card(controller, "neighbour")
    local = read_json(Home(controller.home).agent)
    cases = [
        (card.credential, other.register()),
        (card.credential, card.register(worker_id=local["worker_id"])),
        (other.credential, card.register()),
        (attempt[1], card.register()),
        (controller.token, card.register()),
    ]
    for secret, register in cases:
        with Door(controller, secret) as door:
            door.say(register)
            code, reason = door.closed()
            assert (code, reason[-1]) == (wire.CLOSE_UNAUTHORIZED, ".")
