"""A night's batch: three workers, one of them killed midway, and every image there once in the
morning, with the same pixels as on any other night."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import corral
from corral.sdk.images.batches import BatchHandle
from tests.e2e.test_joining import Machine, connected
from tests.eventually import eventually
from tests.live import LiveController

PLAN: dict[str, Any] = {
    "name": "night-1",
    "seed": 42,
    "backend": "sketch",
    "base": {
        "txt2img": {"model": "sketch", "steps": 20, "width": 64, "height": 64},
        "upscale": {"factor": 2},
    },
    "prompts": [{"positive": "a castle, [[weather]]", "negative": "blurry"}],
    "matrix": {"mode": "fanout", "slots": {"weather": ["rain", "snow"]}},
    "sweep": {"txt2img.cfg_scale": [5, 7.5, 10]},
    "variants": {
        "axes": {"sampler": ["euler", "heun"], "steps": [4, 6]},
        "max_variants": 3,
        "rng_seed": 42,
        "seed_mode": "per_variant",
        "base_seed": 10,
    },
    "batches": 2,
    "stages": ["txt2img", "upscale"],
}
"""2 rows × 3 configs × 3 variants × 2 batches."""
SLOW = "{cpus: 1, backends: [{type: sketch, step_s: 0.03}]}"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveController]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(
        "tls: always\nadvertise: 127.0.0.1\ngrace_s: 1\nbackoff_s: 0.05\nshutdown_grace_s: 1\n"
        f"worker: {SLOW}\n"
    )
    with LiveController(home) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


@pytest.fixture
def machines(tmp_path: Path, client: corral.Client) -> Iterator[list[Machine]]:
    made = [Machine(tmp_path / name) for name in ("attic", "cellar")]
    try:
        for machine in made:
            machine.home.mkdir()
            (machine.home / "corral.yaml").write_text(f"shutdown_grace_s: 1\nworker: {SLOW}\n")
            machine.join(client.admin.invite_worker(), "--name", machine.home.name)
        for name in ("attic", "cellar"):
            eventually(partial(connected, client, name), f"{name} is connected")
        yield made
    finally:
        for machine in made:
            machine.stop()


def killed(machine: Machine) -> None:
    """The whole machine at once, as when its plug is pulled."""
    assert machine.process is not None
    root = psutil.Process(machine.process.pid)
    family = [root, *root.children(recursive=True)]
    for process in family:
        process.suspend()
    for process in family:
        process.kill()
    machine.process.wait(20)


def pixels(batch: BatchHandle) -> list[str]:
    """In the order of the jobs."""
    results = dict(batch.results())
    found = []
    for job in batch.jobs():
        assert isinstance(results[job.job_id], dict), results[job.job_id]
        (image,) = results[job.job_id]["images"]
        found.append(image["pixel_sha256"])
    return found


def history(batch: BatchHandle) -> list[Any]:
    """What a person sees of its jobs, but for where and when."""
    return [(job.name, job.state, job.labels, len(job.artifacts)) for job in batch.jobs()]


def learned(client: corral.Client, batch: BatchHandle) -> list[dict[str, Any]]:
    """What was learned from it, in the order of its jobs, but for names, where and when."""
    eventually(
        lambda: len(list(client.learning.records(batch=batch.id))) == batch.count,
        "all is learned from",
    )
    found = []
    for record in sorted(client.learning.records(batch=batch.id), key=lambda one: one["job_id"]):
        kept = ("name", "labels", "backend", "seeds", "warnings", "record_digest", "rating")
        images = [(one["pixel_sha256"], one["seed"], one["size"]) for one in record["images"]]
        stages = [(one["stage"], one["backend"]) for one in record["stages"]]
        config = {key: value for key, value in record["record"].items() if key != "job_id"}
        rest = {key: record[key] for key in kept}
        found.append({**rest, "images": images, "stages": stages, "record": config})
    return found


@pytest.mark.long
def test_a_night_with_a_lost_machine(
    client: corral.Client, machines: list[Machine], tmp_path: Path
) -> None:
    batch = client.batch(PLAN)
    assert batch.count == 36

    def both_began() -> bool:
        workers = {one.worker: one for one in batch.progress().workers}
        shares = [workers.get(machine.home.name) for machine in machines]
        return all(share and share.succeeded and share.running for share in shares)

    eventually(both_began, "both have begun")
    killed(machines[0])
    view = batch.wait(timeout=90)
    assert view.states == {"succeeded": 36}
    assert sum(one.succeeded for one in view.workers) == 36
    jobs = batch.jobs()
    assert [job.job_id for job in jobs if job.attempt > 1], "what it was doing went elsewhere"
    images = batch.images()
    assert sorted(one.job_id for one in images) == sorted({job.job_id for job in jobs})
    first = pixels(batch)
    fetched = batch.download(tmp_path / "out")
    cards = {
        card["job"]: card
        for card in (json.loads(path.read_bytes()) for _, path in fetched if path.suffix == ".json")
    }
    assert [cards[job.job_id]["pixel_sha256"] for job in jobs] == first
    assert pixels(client.batch(PLAN)) == first
    here = {**PLAN, "needs": {"worker": "local"}}
    alone = client.batch(here)
    assert pixels(alone) == first
    assert len({one.worker for one in alone.progress().workers}) == 1
    assert client.preview(here) == client.preview(PLAN)
    assert history(alone) == history(batch)
    assert learned(client, alone) == learned(client, batch)
