"""Two machines: what each has decides where a job goes, and `why` says so."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest

import corral
from corral.core.errors import ExceedsAllWorkers
from tests.api.rest import Rest
from tests.e2e.test_joining import connected
from tests.eventually import eventually
from tests.fake_nvml import FakeCards
from tests.live import CORRAL, LiveController

CARD = "GPU-e2e"
YAML = (
    "tls: always\nadvertise: 127.0.0.1\nheartbeat_s: 1\ngrace_s: 5\n"
    "cancel_grace_s: 1\nshutdown_grace_s: 1\n"
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """Without a GPU, and with a model."""
    home = tmp_path_factory.mktemp("models")
    shelf = home / "shelf"
    shelf.mkdir()
    (shelf / "tiny.safetensors").write_bytes(b"tiny")
    worker = f"worker: {{name: library, cpus: 2, model_paths: ['{shelf}']}}\n"
    (home / "corral.yaml").write_text(YAML + worker)
    with LiveController(home) as made:
        yield made


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> FakeCards:
    made = FakeCards(tmp_path_factory.mktemp("cards") / "cards.json")
    made.add(CARD, temperature=47, busy=3, cores=10_496, mhz=1_695)
    return made


@pytest.fixture(scope="module")
def second(
    live: LiveController, cards: FakeCards, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[corral.Client]:
    """A client; beside the first worker there is another one, with a GPU and without models."""
    home = tmp_path_factory.mktemp("gaming")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    environ |= {"CORRAL_HOME": str(home), **cards.environ}
    with corral.Client(home=live.home) as client:
        invitation = client.admin.invite_worker()
        words = [CORRAL, "worker", "join", invitation, "--name", "gaming"]
        with (home / "out").open("wb") as out:
            process = subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            for name in ("gaming", "library"):
                eventually(partial(connected, client, name), f"{name} is connected")
            eventually(lambda: worker(client, "library").models, "its models are known")
            yield client
        finally:
            for child in psutil.Process(process.pid).children():
                child.send_signal(signal.SIGTERM)
            process.wait(20)


def worker(client: corral.Client, name: str) -> Any:
    return next(one for one in client.workers() if one.name == name)


def reasons(handle: corral.Handle) -> dict[str, str]:
    return {one.worker: one.reason for one in handle.why().workers}


def test_a_job_goes_where_its_model_is(live: LiveController, second: corral.Client) -> None:
    def read() -> bytes:
        from corral import job

        return job.model("tiny").read_bytes()

    handle = second.submit(read, models=["tiny.safetensors"])
    assert handle.result(60) == b"tiny"
    view = handle.status()
    assert (view.worker, view.models) == ("library", ("tiny",))
    assert "loads tiny from its disk" in " ".join(handle.why().history)
    (model,) = worker(second, "library").models
    eventually(lambda: worker(second, "library").models[0].sha256, "a digest of its model")
    (model,) = worker(second, "library").models
    assert (model.name, model.sha256) == ("tiny", hashlib.sha256(b"tiny").hexdigest())
    again = second.submit(read, models="tiny")
    assert again.result(60) == b"tiny"
    assert "has tiny loaded" in " ".join(again.why().history)
    assert worker(second, "library").models_loaded == ("tiny",)


def test_every_door_takes_models_and_a_worker(live: LiveController, second: corral.Client) -> None:
    @second.function(models=["tiny"], worker="gaming", queue_class="interactive")
    def nowhere() -> None: ...

    with pytest.raises(ExceedsAllWorkers) as caught:
        nowhere.remote()
    assert "lacks the model tiny" in str(caught.value.details)
    rest = Rest(live)
    answer = rest("POST", "/jobs", {"script": {"source": "1"}, "models": ["no such"]})
    assert (answer.status, answer.code) == (503, "exceeds_all_workers")
    there = rest.ended(rest.submit("print(1)", models=["tiny"], worker="local"))
    assert (there["worker"], there["models"]) == ("library", ["tiny"])
    script = live.home / "script.py"
    script.write_text("print('there')")
    told = subprocess.run(
        [CORRAL, "run", "--model", "tiny", "--worker", "library", str(script)],
        env=live.environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (0, "there\n"), told.stderr
    assert list(second.map(abs, [-1, -2], models=["tiny"])) == [1, 2]


def test_a_job_waits_while_others_use_the_card(
    live: LiveController, second: corral.Client, cards: FakeCards
) -> None:
    (gpu,) = worker(second, "gaming").gpus
    assert (gpu.uuid, gpu.name, gpu.vram_gb, gpu.tflops) == (CARD, "Fake RTX 3090", 24.0, 35.6)
    assert (gpu.temperature_c, gpu.utilisation, gpu.others_gb) == (47.0, 0.03, 0.0)
    assert second.run(abs, (-1,), vram_gb=20, output=None) == 1

    cards.use(CARD, {1: 21.3})
    eventually(lambda: worker(second, "gaming").gpus[0].others_gb == 21.3, "others use it")
    waiting = second.submit(abs, (-2,), vram_gb=20)
    small = second.submit(abs, (-3,), gpu_memory=0.1)
    assert small.result(30) == 3, "there is still room for that"
    assert waiting.status().state == "queued"
    assert reasons(waiting)["gaming"] == (
        "needs 1 GPU with 20 GB of VRAM, and 21.3 GB are used by processes that are not Corral's"
    )
    shown = subprocess.run(
        [CORRAL, "workers", "--json"], env=live.environ, capture_output=True, check=True
    )
    by_name = {one["name"]: one for one in json.loads(shown.stdout)}
    assert by_name["gaming"]["gpus"][0]["others_gb"] == 21.3
    assert Rest(live)("GET", "/workers/gaming").json["gpus"][0]["free_gb"] == 2.7

    cards.use(CARD, {})
    assert waiting.result(30) == 2, "it starts by itself once they are gone"
