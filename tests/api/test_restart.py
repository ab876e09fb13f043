"""What an operator asked for outlives kill -9: the pause, the front of the line, tokens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.api.rest.following import with_pauses
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController


def command(controller: LiveController, *words: str) -> str:
    done = subprocess.run([CORRAL, *words], env=controller.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_pause_front_and_tokens_outlive_a_kill(tmp_path: Path) -> None:
    controller = LiveController(tmp_path / "home", environ={"CORRAL_WORKER_CPUS": "1"})
    with controller:
        rest = Rest(controller)
        token = command(controller, "token", "create", "ann").strip()
        mine = Rest(controller, token)
        command(controller, "queue", "pause")
        jobs = [mine.submit(f"print({n})") for n in range(4)]
        command(controller, "front", jobs[3], jobs[2])
        controller.kill()
        controller.start()
        view = rest("GET", "/queue").json
        assert (view["paused"], view["waiting"]["interactive"]) == (True, 4)
        assert "paused" in mine("GET", f"/jobs/{jobs[0]}/why").json["summary"]
        shown = json.loads(command(controller, "queue", "status", "--json"))
        assert shown == view
        assert mine("GET", f"/jobs/{jobs[0]}").json["user"] == "ann"
        command(controller, "queue", "resume")
        ended = [rest.ended(job) for job in jobs]
        assert {one["state"] for one in ended} == {"succeeded"}
        started = sorted(ended, key=lambda one: one["started_at"])
        assert [one["job_id"] for one in started] == [jobs[3], jobs[2], jobs[0], jobs[1]]
        assert "running" in command(controller, "queue", "status")
        listed = json.loads(command(controller, "jobs", "--user", "ann", "--since", "1h", "--json"))
        assert [one["job_id"] for one in listed] == sorted(jobs, reverse=True)


async def test_a_quiet_stream_says_that_it_is_there() -> None:
    import asyncio

    spoken = asyncio.Event()

    async def watching() -> AsyncIterator[list[str]]:
        yield ["first"]
        await spoken.wait()
        yield ["second"]

    seen: list[Any] = []
    async for one in with_pauses(watching(), 0.01):
        seen.append(one)
        if seen.count(None) == 2:
            spoken.set()
    assert seen[:3] == [["first"], None, None]
    assert seen[-1] == ["second"]
