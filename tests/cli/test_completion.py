"""What Tab offers, asked as bash asks it."""

from __future__ import annotations

import subprocess

import pytest

import corral
from tests.live import CORRAL, LiveController


def offered(environ: dict[str, str], *words: str) -> list[str]:
    """Behind these words, of which the last may be begun."""
    asked = {
        "_CORRAL_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("corral", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [CORRAL], env={**environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.split()


def test_jobs_workers_and_states(controller: LiveController) -> None:
    with corral.Client(controller.address, controller.token) as client:
        handle = client.submit(abs, (-1,))
        assert handle.result(60) == 1
        (worker,) = {one.name for one in client.workers()}
    for command in ("show", "why", "logs", "cancel", "get", "front", "retry"):
        assert handle.id in offered(controller.environ, command, handle.id[:10]), command
    assert offered(controller.environ, "show", "la") == ["last"]
    assert worker in offered(controller.environ, "jobs", "--worker", worker[:1])
    assert worker in offered(controller.environ, "run", "--worker", worker[:1])
    assert worker in offered(controller.environ, "worker", "drain", worker[:1])
    assert offered(controller.environ, "jobs", "--state", "r") == ["running", "rejected"]


@pytest.mark.parametrize("words", [("show", "1"), ("worker", "drain", "")])
def test_without_a_controller_nothing_is_offered_and_nothing_said(
    controller: LiveController, words: tuple[str, ...]
) -> None:
    nobody = {**controller.environ, "CORRAL_ADDRESS": "127.0.0.1:1", "CORRAL_TOKEN": "none"}
    assert offered(nobody, *words) == []
