"""A night of images over three machines, one of which dies in the middle: every image once, and the
same pixels, previews, history and lessons wherever and whenever they are made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import corral
from tests.e2e.test_joining import YAML, Machine, connected, eventually
from tests.live import LiveController

WORKER = "worker: {cpus: 1, backends: [{type: sketch, step_s: 0.02}]}\n"
PLAN: dict[str, Any] = {
    "name": "night-1",
    "seed": 42,
    "backend": "sketch",
    "base": {
        "txt2img": {"model": "sketch", "sampler": "euler", "steps": 10, "width": 64, "height": 64},
        "upscale": {"factor": 2, "upscaler": "lanczos"},
    },
    "prompts": [{"positive": "a castle, [[weather]]", "negative": "blurry"}],
    "matrix": {"mode": "fanout", "slots": {"weather": ["rain", "snow"]}},
    "sweep": {"txt2img.cfg_scale": [5, 7.5, 10]},
    "variants": {
        "axes": {"sampler": ["euler", "heun"], "steps": [5, 10]},
        "max_variants": 3,
        "rng_seed": 42,
        "seed_mode": "per_variant",
        "base_seed": 10,
    },
    "batches": 2,
    "stages": ["upscale", "txt2img"],
}
RECORDS = 36
OF_THIS_RUN = ("job_id", "batch", "worker", "attempt", "started_at", "ended_at", "submitted_at")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("night")
    (home / "corral.yaml").write_text(YAML + WORKER)
    with LiveController(home) as made:
        yield made


@pytest.fixture(scope="module")
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


@pytest.fixture(scope="module")
def machines(
    client: corral.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Machine]]:
    made = []
    for name in ("attic", "cellar"):
        machine = Machine(tmp_path_factory.mktemp("machines") / name)
        machine.home.mkdir()
        (machine.home / "corral.yaml").write_text(WORKER)
        machine.join(client.admin.invite_worker(), "--name", name)
        made.append(machine)
    for name in ("attic", "cellar"):
        eventually(lambda name=name: connected(client, name), 60)  # type: ignore[misc]
    yield made
    for machine in made:
        machine.stop()


def power_cut(machine: Machine) -> None:
    assert machine.process is not None
    whole = psutil.Process(machine.process.pid)
    for process in [whole, *whole.children(recursive=True)]:
        os.kill(process.pid, signal.SIGKILL)
    machine.process.wait(20)


def rendered(client: corral.Client, batch: corral.BatchHandle) -> dict[str, str]:
    """The pixels of each record, once the whole batch succeeded with one image for each."""
    view = batch.wait(timeout=100)
    assert view.states == {"succeeded": RECORDS}
    results = dict(batch.results())
    assert len({image.name for image in batch.images()}) == len(batch.images()) == RECORDS
    found = {result["record_digest"]: result["images"] for result in results.values()}
    assert len(found) == RECORDS, "each record once"
    return {record: image["pixel_sha256"] for record, (image,) in found.items()}


def learned(client: corral.Client, batch: corral.BatchHandle) -> list[dict[str, Any]]:
    """What was learned of a batch, but for where and when it was."""
    eventually(lambda: len(list(client.learning.records(batch=batch.id))) == RECORDS)
    lines = list(client.learning.records(batch=batch.id))
    for line in lines:
        for key in (*OF_THIS_RUN, "seconds"):
            del line[key]
        del line["record"]["job_id"]
        for stage in line["stages"]:
            del stage["seconds"], stage["slot_seconds"]
        for image in line["images"]:
            # The name carries the job's id, and so does the record inside the file.
            del image["name"], image["file_sha256"]
    return sorted(lines, key=lambda line: str(line["record_digest"]))


def shown(batch: corral.BatchHandle) -> list[tuple[Any, ...]]:
    return [(one.name, one.state, one.queue_class, one.labels) for one in batch.jobs()]


def test_a_night_with_a_power_cut_and_the_same_night_again(
    client: corral.Client, machines: list[Machine], tmp_path: Path
) -> None:
    first = client.batch(PLAN)
    assert first.count == RECORDS
    eventually(lambda: first.progress().states.get("succeeded", 0) >= 6, 60)
    held = [job for job in first.jobs() if job.worker == "cellar" and not job.ended]
    power_cut(machines[1])
    pixels = rendered(client, first)
    workers = {job.worker for job in first.jobs()}
    assert {"attic", "cellar"} < workers, "all three took part"
    assert held, "it died with work in its hands"
    assert all(job.attempt > 1 for job in first.jobs() if job.job_id in {j.job_id for j in held})

    again = client.batch(PLAN)
    assert again.id != first.id
    assert rendered(client, again) == pixels

    alone = client.batch({**PLAN, "needs": {"worker": "local"}})
    assert rendered(client, alone) == pixels
    assert {job.worker for job in alone.jobs()}.isdisjoint({"attic", "cellar"})
    assert shown(alone) == shown(again) == shown(first)
    assert learned(client, alone) == learned(client, again) == learned(client, first)
