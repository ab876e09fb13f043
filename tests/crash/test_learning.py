"""kill -9 of a controller that learns, again and again while images are rendered: one whole line
for each image job, and what is in a backup is the same after a restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.controller.history.retention import Retention
from corral.controller.output.spool import Spool
from corral.controller.recovery import restore
from corral.controller.recovery.backup import Backups
from corral.core.events import JobSucceeded
from corral.home import Home
from tests.controller.paintings import Studio, studio
from tests.controller.test_retention import KEEP
from tests.crash.books import end_of, stories
from tests.crash.conftest import same_port
from tests.eventually import eventually
from tests.live import LiveController

pytestmark = pytest.mark.crash

KILLS = 6
PLAN: dict[str, Any] = {
    "name": "steps",
    "variable": "txt2img.steps",
    "values": [1, 2, 3, 4, 5, 6],
    "images": 8,
    "prompt": "a castle",
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
}


def lines(home: Path) -> list[bytes]:
    path = home / "learning" / "records.jsonl"
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


@pytest.mark.long
def test_killed_again_and_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    controller = LiveController(home, *same_port(), environ={"CORRAL_GRACE_S": "10"})
    controller.start()
    with corral.Client(controller.address, controller.token) as client:
        run = client.learning.start(PLAN)
    for kill in range(KILLS):
        count = 1 + kill * run.jobs // (KILLS + 1)
        eventually(lambda count=count: len(lines(home)) >= count, f"{count} lines")  # type: ignore[misc]
        controller.kill()
        if kill < KILLS - 1:
            controller.start()
    with controller, corral.Client(controller.address, controller.token) as client:
        result = client.learning.run(PLAN)
        records = list(client.learning.records())
    assert (result["complete"], result["ended"]) == (True, run.jobs)
    assert [step["images"] for step in result["steps"]] == [8] * 6
    ended = [job for job, story in stories(home).items() if isinstance(end_of(story), JobSucceeded)]
    written = lines(home)
    assert all(line.endswith(b"\n") for line in written)
    learned = [json.loads(line)["job_id"] for line in written]
    assert sorted(learned) == sorted(ended)
    assert [record["job_id"] for record in records] == learned


async def test_a_backup_has_what_was_learned(tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    async with studio(tmp_path / "home") as made:
        jobs = [await made.paint() for _ in range(3)]
        await made.learnings.caught_up()
        await made.learnings.rate(jobs[0], 4)
        (made.home / "learning" / "runs" / "r").mkdir(parents=True)
        (made.home / "learning" / "runs" / "r" / "plan.json").write_text("{}")
        await back_up(made, file)
        later = await made.paint()
        await made.learnings.caught_up()
        await made.learnings.rate(jobs[0], 1)
    home = Home(tmp_path / "home")
    restore.commit(home, restore.prepare(home, file)[0])
    restore.swap_in(home)
    async with studio(tmp_path / "home") as made:
        assert made.learned() == jobs
        assert (await made.exported())[0]["rating"]["rating"] == 4
        assert (made.home / "learning" / "runs" / "r" / "plan.json").read_text() == "{}"
        jobs.append(await made.paint())
        await made.learnings.caught_up()
        assert made.learned() == jobs
    (kept,) = home.backups.glob("before-restore-*")
    assert later in (kept / "learning" / "records.jsonl").read_text()


async def test_a_backup_of_before_there_was_learning(tmp_path: Path) -> None:
    """What is in its journal is learned from all the same."""
    file = tmp_path / "kept.tar"
    async with studio(tmp_path / "home", learning=False) as made:
        jobs = [await made.paint() for _ in range(2)]
        await back_up(made, file)
    home = Home(tmp_path / "elsewhere")
    restore.commit(home, restore.prepare(home, file)[0])
    restore.swap_in(home)
    async with studio(home.path) as made:
        assert made.learned() == jobs


async def back_up(made: Studio, file: Path) -> None:
    spool = Spool(made.home / "spool", 1 << 20)
    try:
        retention = Retention(made.store, made.blobs, spool, KEEP)
        pieces = [one.data async for one in Backups(Home(made.home), retention, "test").stream()]
    finally:
        spool.close()
    file.write_bytes(b"".join(pieces))
