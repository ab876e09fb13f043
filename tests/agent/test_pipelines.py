"""Image jobs on an agent: who takes them, in which process they run, and what a server that is
down sets off."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.agent import image_servers
from corral.agent.image_servers import COMES_UP_S, Restarts, ServerOffers
from corral.core.images.backends import SketchEntry, WebUIEntry
from corral.core.images.pipeline import Record
from corral.core.job import PipelineCall
from corral.core.worker import Withdrawn
from corral.protocol import messages as wire
from tests.agent.conftest import BOTH_KINDS, StartAgent
from tests.agent.fake_controller import FakeController
from tests.eventually import eventually_async
from tests.fakes.webui import FakeWebUI
from tests.runtime.harness import Controller as Transfers
from tests.runtime.webui.rendering import RECORD

CASTLE = Record(positive="a castle", model="sketch", width=64, height=64)
WEBUI = {"type": "webui", "url": "http://127.0.0.1:9", "restart": "true"}


@pytest.fixture(params=BOTH_KINDS)
def spawned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def transfers(controller: FakeController) -> Iterator[Transfers]:
    made = Transfers()
    made.token = "a token"
    controller.url = made.url
    yield made
    made.close()


@pytest.mark.parametrize(
    ("settings", "workloads", "tasks"),
    [
        ({}, ("python", "pipeline"), ("sketch", "sketch+adetailer")),
        ({"worker.allow_code": False}, ("pipeline",), ("sketch", "sketch+adetailer")),
        ({"worker.backends": []}, ("python",), ()),
        (
            {"worker.backends": [WEBUI, {"type": "sketch"}]},
            ("python", "pipeline"),
            (
                *("webui", "webui+adetailer", "render", "render+adetailer"),
                *("sketch", "sketch+adetailer"),
            ),
        ),
        # PyTorch is not among what Corral itself needs.
        ({"worker.backends": [{"type": "diffusers"}]}, ("python",), ()),
        (
            {"worker.backends": [{"type": "diffusers"}, {"type": "sketch"}]},
            ("python", "pipeline"),
            ("sketch", "sketch+adetailer"),
        ),
    ],
)
async def test_a_worker_says_what_it_renders(
    start: StartAgent,
    controller: FakeController,
    settings: dict[str, Any],
    workloads: tuple[str, ...],
    tasks: tuple[str, ...],
) -> None:
    await start(**settings)
    can = (await controller.expect(wire.WorkerRegister)).capabilities
    assert (can.workloads, can.task_types) == (workloads, tasks)
    assert can.enforced.get("duration") in ("cgroup", "landlock", "process_tree")


async def test_it_runs_in_the_workers_own_environment(
    start: StartAgent, controller: FakeController, transfers: Transfers
) -> None:
    await start(**{"worker.allow_code": False})
    job = controller.dispatch(
        PipelineCall(CASTLE),
        python="2.7",
        requirements=("there-is-no-such-package",),
        env={"PYTHONHOME": "/nowhere"},
    )
    await controller.send(job)
    completed = await controller.completed(job.job)
    assert completed.result is not None
    assert completed.result.data is not None
    (made,) = json.loads(completed.result.data)["images"]
    card = json.loads(transfers.artifacts[f"{job.job}-000.json"])
    assert transfers.artifacts[made["name"]].startswith(b"\x89PNG")
    assert (card["worker"], card["pixel_sha256"]) == ("here", made["pixel_sha256"])


async def test_a_second_one_finds_the_runner_warm(
    start: StartAgent, controller: FakeController, transfers: Transfers
) -> None:
    await start()
    for warm in (False, True):
        job = controller.dispatch(PipelineCall(CASTLE))
        await controller.send(job)
        await controller.completed(job.job)
        assert (await controller.expect(wire.JobStarted, job.job)).warm is warm


async def test_code_cannot_come_into_that_environment(
    start: StartAgent, controller: FakeController
) -> None:
    await start(**{"worker.allow_code": False})
    job = controller.job(abs, -1)
    await controller.send(job)
    assert (await controller.failed(job.job)).failure.code == "workload_refused"


async def test_a_worker_without_backends_refuses(
    start: StartAgent, controller: FakeController
) -> None:
    await start(**{"worker.backends": []})
    job = controller.dispatch(PipelineCall(CASTLE))
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "workload_refused"
    assert "worker.backends" in failure.message


async def test_what_a_stage_lacks_is_said_as_it_is(
    start: StartAgent, controller: FakeController
) -> None:
    await start()
    job = controller.dispatch(PipelineCall(Record(positive="x", backend="comfyui")))
    await controller.send(job)
    assert (await controller.failed(job.job)).failure.code == "stage_missing"


async def test_what_a_server_has_is_told(start: StartAgent, controller: FakeController) -> None:
    with FakeWebUI() as fake:
        fake.detailer = False
        await start(**{"worker.backends": [{"type": "webui", "url": fake.url}]})
        told = await controller.expect(wire.WorkerRegister)
    assert told.capabilities.task_types == ("webui", "render")
    assert "alpha" in told.capabilities.models_present
    assert set(told.capabilities.models_present) == {model.name for model in told.models}


async def test_a_server_that_does_not_answer_is_told_and_one_that_never_did_is_started(
    start: StartAgent, controller: FakeController
) -> None:
    with FakeWebUI() as fake:
        url = fake.url
    await start(**{"worker.backends": [{"type": "webui", "url": url}]})
    (server,) = (await controller.expect(wire.WorkerRegister)).servers
    assert (server.kind, server.url) == ("webui", url)
    assert url in server.trouble

    started: list[str] = []
    answered: list[str] = []
    now = 1000.0
    offers = ServerOffers(
        [WebUIEntry(url=url)],
        lambda: None,
        lambda kind, url: started.append(f"{kind} {url}"),
        answered.append,
        clock=lambda: now,
    )
    await offers._look()
    now += COMES_UP_S - 1
    await offers._look()
    assert not started
    now += 1
    await offers._look()
    await offers._look()
    assert started == [f"webui {url}"]
    assert not answered
    with FakeWebUI() as fake:
        offers = ServerOffers([WebUIEntry(url=fake.url)], lambda: None, print, answered.append)
        await offers._look()
        assert answered == [fake.url]
        offers = ServerOffers([WebUIEntry(url=fake.url), SketchEntry()], lambda: None, print, print)
        await offers._look()
        assert [one.kind for one in offers.in_order] == ["webui", "sketch"]
        offers.silent("webui", f"The WebUI at {fake.url} died.")
    assert [one.kind for one in offers.in_order] == ["sketch", "webui"]


async def test_while_a_server_is_silent_what_it_has_is_withdrawn(
    start: StartAgent, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_servers, "EVERY_S", 3600.0)
    with FakeWebUI() as fake:
        backends = [{"type": "webui", "url": fake.url}, {"type": "sketch"}]
        await start(**{"worker.backends": backends})
        assert not (await controller.expect(wire.WorkerRegister)).withdrawn
        fake.die()
        job = controller.dispatch(PipelineCall(RECORD))
        await controller.send(job)
        assert (await controller.failed(job.job)).failure.code == "backend_silent"
        told = [one for one in controller.heard if isinstance(one, wire.WorkerHeartbeat)]
        (gone,) = [one for one in told if one.withdrawn is not None]
        assert gone.withdrawn is not None
        assert gone.withdrawn.tasks == ("webui", "webui+adetailer", "render", "render+adetailer")
        assert "alpha" in gone.withdrawn.models
        assert gone.servers is not None
        assert fake.url in gone.servers[0].trouble
        fake.restart()
        back = await controller.expect(
            wire.WorkerHeartbeat, where=lambda beat: beat.withdrawn == Withdrawn()
        )
        assert back.servers is not None
        assert not back.servers[0].trouble


async def test_a_job_is_rendered_by_the_server_and_two_take_turns(
    start: StartAgent, controller: FakeController, transfers: Transfers, tmp_path: Path
) -> None:
    with FakeWebUI() as fake:
        fake.step_s = 0.2
        await start(**{"worker.cpus": 2.0, "worker.backends": [{"type": "webui", "url": fake.url}]})
        jobs = [controller.dispatch(PipelineCall(replace(RECORD, seed=seed))) for seed in (7, 8)]
        await controller.send(*jobs)
        turns = tmp_path / "worker" / "turns"
        # A confined runner may stand in the line.
        await eventually_async(lambda: bool(list(turns.glob("*.waits-*"))), "one waits")
        for job in jobs:
            completed = await controller.completed(job.job)
            assert completed.result is not None
            assert completed.result.data is not None
            assert json.loads(completed.result.data)["backend"] == "webui"
            card = json.loads(transfers.artifacts[f"{job.job}-000.json"])
            assert card["models"]
        assert fake.most_at_once == 1


async def test_a_server_that_is_gone_is_told_by_its_job_and_restarted(
    start: StartAgent, controller: FakeController, tmp_path: Path
) -> None:
    with FakeWebUI() as fake:
        fake.die()
        restart = f"{sys.executable} -c \"print('up')\""
        await start(**{"worker.backends": [{"type": "webui", "url": fake.url, "restart": restart}]})
        job = controller.dispatch(PipelineCall(RECORD))
        await controller.send(job)
        failure = (await controller.failed(job.job)).failure
    assert (failure.code, failure.type) == ("backend_silent", "webui")
    said = tmp_path / "worker" / "restarts.log"
    await eventually_async(lambda: said.exists() and said.read_text() == "up\n", "a restart")


async def test_a_server_that_is_down_is_started_again_once(tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = f"{sys.executable} -c \"print('started')\""
    other = WebUIEntry(url="http://127.0.0.1:7861", restart="false")
    ours = WebUIEntry(url="http://127.0.0.1:78/", restart=command)
    restarts = Restarts([other, ours], {}, said)
    trouble = "Nothing answers at http://127.0.0.1:78 (refused)."
    for kind in ("webui", "webui", "comfyui"):
        restarts.down(kind, trouble)
    async with asyncio.timeout(20):
        await asyncio.gather(*restarts._tasks)
    assert said.read_text() == "started\n"
    restarts.answers(other.url)
    restarts.down("webui", trouble)
    assert not restarts._tasks, "it is the other one that answers"
    restarts.answers(ours.url)  # it came up, and is down again
    restarts.down("webui", trouble)
    async with asyncio.timeout(20):
        await asyncio.gather(*restarts._tasks)
    assert said.read_text() == "started\nstarted\n"
    await restarts.close()
