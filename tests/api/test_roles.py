"""Who may do what: every route and every method, as the application and the service list them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import grpc
import pytest
from starlette.routing import Route, WebSocketRoute

import corral
from corral.api.roles import METHODS, ROUTES
from corral.contract import service
from corral.controller.auth.tokens import Access
from corral.core.access import Role
from corral.core.errors import Forbidden
from tests.api.described import described
from tests.api.rest import Rest
from tests.api.test_doors import _answers, _request
from tests.live import CORRAL, LiveController

JOINING = {
    ("GET", "/join"),
    ("GET", "/join.ps1"),
    ("GET", "/certificate"),
    ("POST", "/join-requests"),
    ("PUT", "/join-requests/{asked}"),
    ("GET", "/join-requests/{asked}"),
}
"""How a machine gets in without a token: the certificate, scripts without secrets, a request that
the operator confirms, answered to whoever has its number; see e2e/test_bare_machine and
e2e/test_discovery."""
OPEN = {("GET", "/health"), *JOINING}
"""What anybody may ask."""
BY_ATTEMPT = "/attempts/"
"""Guarded by the token of one attempt; see test_doors."""


BY_INVITATION = {("POST", "/enrol"), ("GET", "/join/{name}")}
"""Guarded by the enrolment token; see e2e/test_joining."""


def _routes() -> list[tuple[str, str]]:
    """Every route of the application, the one the controller serves."""
    return [
        (method, route.path)
        for route in _walk(described().routes)
        if not isinstance(route, WebSocketRoute)
        for method in sorted(route.methods or ())
    ]


def _walk(routes: Sequence[object]) -> Iterator[Route | WebSocketRoute]:
    """FastAPI keeps the routers of its parts as they are, one level down, or flattens them."""
    for route in routes:
        if isinstance(route, Route | WebSocketRoute):
            yield route
        else:
            yield from _walk(cast(Any, route).original_router.routes)


EVERY = _routes()
GUARDED = [
    one
    for one in EVERY
    if one not in OPEN and one not in BY_INVITATION and not one[1].startswith(BY_ATTEMPT)
]
SMALLER = {Role.SUBMIT: [Role.READ], Role.ADMIN: [Role.READ, Role.SUBMIT], Role.READ: []}


@pytest.fixture(scope="module")
def tokens(controller: LiveController) -> Iterator[dict[Role, str]]:
    """One token of each role."""
    rest = Rest(controller)
    made = {}
    for role in Role:
        answer = rest("POST", "/tokens", {"name": f"some-{role}", "role": role})
        assert answer.status == 201, answer
        made[role] = answer.json["token"]
    yield made
    for role in Role:
        assert rest("DELETE", f"/tokens/some-{role}").status == 200


def _filled(path: str) -> str:
    return re.sub(r"{[^}]+}", "zzzzzzzzzzzzzzz", path)


def test_the_tables_are_complete() -> None:
    assert set(METHODS) == set(service.METHODS)
    assert set(ROUTES) == {f"{method} {path}" for method, path in GUARDED}


@pytest.mark.parametrize(("method", "path"), [one for one in EVERY if one not in OPEN])
def test_no_route_answers_without_a_token(
    controller: LiveController, method: str, path: str
) -> None:
    path = _filled(path).replace("/zzzzzzzzzzzzzzz/zzzzzzzzzzzzzzz", "/zzzzzzzzzzzzzzz/1")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic abc"}):
        answer = Rest(controller, token="")(method, path, **headers)
        expected = (403,) if "/attempts/" in path and "wrong" in str(headers) else (401,)
        assert answer.status in expected, (headers, answer)
        assert answer.code in ("unauthorized", "forbidden")


@pytest.mark.parametrize(("method", "path"), sorted(JOINING))
def test_nobody_asks_a_controller_on_loopback(
    controller: LiveController, method: str, path: str
) -> None:
    body = {"name": "x", "commitment": "0" * 64} if method == "POST" else {"number": "0" * 64}
    sent = None if method == "GET" else body
    answer = Rest(controller, token="0" * 64)(method, _filled(path), sent)
    assert (answer.status, answer.code) == (409, "conflict")


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_route_needs_its_role(
    controller: LiveController, tokens: dict[Role, str], method: str, path: str
) -> None:
    needed = ROUTES[f"{method} {path}"]
    for role in SMALLER[needed]:
        answer = Rest(controller, tokens[role])(method, _filled(path), b"x" * 100)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert f"the role {needed}" in answer.json["error"]["message"]
    if (method, path) not in {("POST", "/queue/pause"), ("POST", "/queue/resume")}:
        assert Rest(controller, tokens[needed])(method, _filled(path)).status not in (401, 403)


@pytest.mark.parametrize("method", service.METHODS)
def test_a_method_needs_its_role(
    controller: LiveController, tokens: dict[Role, str], method: str
) -> None:
    needed = METHODS[method]
    with grpc.insecure_channel(controller.address) as channel:
        call = getattr(service.stub(channel), method)
        for role in SMALLER[needed]:
            metadata = (("authorization", f"Bearer {tokens[role]}"),)
            with pytest.raises(grpc.RpcError) as refused:
                _answers(call(_request(method), metadata=metadata, timeout=10))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            trailers = dict(cast(Any, refused.value).trailing_metadata())
            told = json.loads(trailers[service.ERROR_KEY])["error"]
            assert told["details"]["role_needed"] == needed
            assert told["details"]["role"] == role


def test_a_job_belongs_to_the_token_that_submitted_it(
    controller: LiveController, tokens: dict[Role, str]
) -> None:
    job = {"script": {"source": "print(1)"}, "user": "somebody"}
    submitter, admin = (Rest(controller, tokens[role]) for role in (Role.SUBMIT, Role.ADMIN))
    assert admin("POST", "/jobs", job).json["jobs"][0]["user"] == "somebody"
    refused = submitter("POST", "/jobs", job)
    assert (refused.status, refused.json["error"]["code"]) == (403, "forbidden")
    own = corral.Client(controller.address, tokens[Role.SUBMIT])
    with own:
        with pytest.raises(Forbidden, match="belong to 'some-submit'; only an admin's token"):
            own.submit(abs, (-1,), user="somebody")
        handle = own.submit(abs, (-1,), user="some-submit")
        assert (handle.result(), handle.status().user) == (1, "some-submit")
        assert handle.retry().status().user == "some-submit"


def plant() -> int:
    """Answers for whatever runs in this process afterwards, as code of a job can."""
    import builtins

    vars(builtins)["abs"] = lambda value: "planted"
    return os.getpid()


def asked(value: int) -> tuple[int, object]:
    return os.getpid(), abs(value)


def test_no_user_meets_what_another_left_in_a_process(controller: LiveController) -> None:
    rest = Rest(controller)
    made = {
        name: rest("POST", "/tokens", {"name": name, "role": role}).json["token"]
        for name, role in (("mallory", "submit"), ("alice", "submit"), ("root", "admin"))
    }
    mallory, alice, root, owner = (
        corral.Client(controller.address, token) for token in (*made.values(), controller.token)
    )
    with mallory, alice, root, owner:
        planted = mallory.submit(plant)
        process = planted.result()
        assert mallory.submit(asked, (-1,)).result() == (process, "planted")  # it is warm
        for client in (alice, root, owner):
            for _ in range(2):
                assert client.submit(asked, (-1,)).result()[1] == 1
        for client in (root, owner):
            # Also where an admin says that it is hers: the result comes to the admin.
            assert client.submit(asked, (-1,), user="mallory").result()[1] == 1
        again = alice.job(planted.id).retry()
        assert again.result() != process
        assert again.status().user == "alice"
        for client in (alice, root, owner):
            assert client.submit(asked, (-1,)).result()[1] == 1
        # What an operator tries again stays hers, and runs in her processes.
        assert owner.job(planted.id).retry().status().user == "mallory"
    for name in made:
        assert rest("DELETE", f"/tokens/{name}").status == 200


def test_tokens_by_the_command_line(controller: LiveController) -> None:
    def command(*words: str, token: str = "", ok: bool = True) -> str:
        environ = {**controller.environ, **({"CORRAL_TOKEN": token} if token else {})}
        done = subprocess.run([CORRAL, *words], env=environ, capture_output=True, text=True)
        assert (done.returncode == 0) is ok, done
        return done.stdout if ok else done.stderr

    token = command("token", "create", "carol", "--role", "read", "--expires", "30d").strip()
    (listed,) = (
        one for one in json.loads(command("token", "list", "--json")) if one["name"] == "carol"
    )
    assert listed["role"] == "read"
    assert 29 * 86_400 < listed["expires_at"] - time.time() < 31 * 86_400
    kept = controller.home / "tokens.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert token not in kept.read_text()
    assert "already" in command("token", "create", "carol", ok=False)
    assert "roles are" in command("token", "create", "dave", "--role", "king", ok=False)
    command("queue", "status", token=token)
    refused = command("queue", "pause", token=token, ok=False)
    assert "role admin" in refused
    assert command("token", "revoke", "carol").startswith("The token carol is revoked")
    assert "not good here" in command("queue", "status", token=token, ok=False)


async def test_a_token_expires_and_outlives_a_restart(tmp_path: Any) -> None:
    path = tmp_path / "tokens.json"
    access = Access(path, "home")
    short, _ = await access.create("short", "read", 0.001)
    long, _ = await access.create("long", "submit", 3600)
    again = Access(path, "home")
    assert again.caller(long).name == "long"
    assert again.caller("home").role is Role.ADMIN
    while time.time() < again.tokens()[1].expires_at:
        pass
    with pytest.raises(corral.CorralError, match="expired"):
        again.caller(short)
    await again.revoke("long")
    with pytest.raises(corral.CorralError, match="not good here"):
        Access(path, "home").caller(long)
