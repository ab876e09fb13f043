"""On a machine with a real NVIDIA GPU and PyTorch in its own Python: what attempts see of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.core.errors import JobFailed
from tests.eventually import eventually
from tests.live import LiveController

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[corral.Client]:
    home: Path = tmp_path_factory.mktemp("gpu")
    (home / "corral.yaml").write_text("worker: {system_site_packages: true, cpus: 4}\n")
    with LiveController(home) as live, corral.Client(live.address, live.token) as client:
        yield client


def look() -> tuple[int, str, float]:
    import os

    import torch

    count = torch.cuda.device_count()
    total = torch.cuda.get_device_properties(0).total_memory / 2**30 if count else 0.0
    return count, os.environ["CUDA_VISIBLE_DEVICES"], total


def test_the_inventory_is_what_the_job_sees(gpu: corral.Client) -> None:
    count, visible, total = gpu.run(look, gpus=1)
    (worker,) = gpu.workers()
    card = worker.gpus[0]
    assert card.uuid.startswith("GPU-")
    assert (count, visible) == (1, card.uuid)
    assert abs(total - card.vram_gb) / card.vram_gb < 0.1
    print(f"{card.name}, {card.vram_gb:g} GB, {card.uuid}")


def test_a_job_without_gpus_sees_none(gpu: corral.Client) -> None:
    assert gpu.run(look)[:2] == (0, "")


def hold(seconds: float) -> tuple[float, float]:
    import torch

    begun = time.time()
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    while time.time() - begun < seconds:
        a = torch.nn.functional.normalize(a @ a)
    torch.cuda.synchronize()
    return begun, time.time()


def overlap(gpu: corral.Client, share: float) -> float:
    handles = [gpu.submit(hold, (2.0,), gpu_memory=share) for _ in range(2)]
    (a, b), (c, d) = (handle.result(timeout=120) for handle in handles)
    return float(min(b, d) - max(a, c))


def test_shares_that_fit_run_together_and_others_in_turn(gpu: corral.Client) -> None:
    overlap(gpu, 0.5)  # the first time, each needs a moment to bring CUDA up
    assert overlap(gpu, 0.5) > 0.5
    assert overlap(gpu, 0.8) <= 0


def test_out_of_memory_is_named_and_the_next_job_runs(gpu: corral.Client) -> None:
    def greedy() -> None:
        import torch

        held = []
        while True:
            held.append(torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda"))

    with pytest.raises(JobFailed) as caught:
        gpu.run(greedy, gpus=1)
    error: Any = caught.value
    assert error.failure.code == "out_of_memory"
    assert gpu.run(look, gpus=1)[0] == 1


def test_a_warm_runner_keeps_cuda_up(gpu: corral.Client) -> None:
    def step(size: int) -> float:
        import torch

        a = torch.ones(size, size, device="cuda")
        return float((a @ a)[0, 0])

    gpu.run(step, (8,), gpus=1)
    begun = time.perf_counter()
    assert list(gpu.map(step, [64] * 200, gpus=1)) == [64.0] * 200
    print(f"200 matrix products one after another: {time.perf_counter() - begun:.2f} s")


# --- the inventory -------------------------------------------------------------------------------


def card(gpu: corral.Client) -> Any:
    (worker,) = gpu.workers()
    return worker.gpus[0]


def test_the_driver_is_read(gpu: corral.Client) -> None:
    eventually(lambda: card(gpu).temperature_c is not None, "a temperature")
    seen = card(gpu)
    print(f"{seen}")
    assert 10 < seen.temperature_c < 110
    assert 0 <= seen.utilisation <= 1
    assert seen.tflops > 5
    assert 0 < seen.free_gb <= seen.vram_gb


def test_what_a_job_holds_is_ours(gpu: corral.Client) -> None:
    def keep(gigabytes: int, seconds: float) -> None:
        import torch

        held = torch.ones(gigabytes * 2**30, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        time.sleep(seconds)
        del held

    before = card(gpu).others_gb
    handle = gpu.submit(keep, (8, 30.0), gpus=1, fresh=True)
    eventually(lambda: card(gpu).ours_gb >= 8, "8 GB are ours")
    eventually(lambda: abs(card(gpu).others_gb - before) < 1, "others hold as before")
    print(f"ours {card(gpu).ours_gb} GB, others {card(gpu).others_gb} GB")
    handle.cancel()
    eventually(lambda: card(gpu).ours_gb < 8, "ours are given back")


OTHER = """
import sys, torch
held = torch.ones(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_program_holds_is_taken(gpu: corral.Client) -> None:
    """It is started beside the agent, as somebody who uses the machine would."""
    size = card(gpu).vram_gb
    share, needed = size * 0.45, size * 0.6
    eventually(lambda: card(gpu).others_gb < 1, "others are gone")
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        eventually(lambda: card(gpu).others_gb >= share - 1, "others are seen")
        waiting = gpu.submit(look, vram_gb=needed)
        half = gpu.submit(look, gpu_memory=0.4)
        assert half.result(timeout=120)[0] == 1, "there is room beside it"
        assert waiting.status().state == "queued"
        (reason,) = (one.reason for one in waiting.why().workers)
        print(reason)
        assert "GB are used by processes that are not Corral's" in reason
    finally:
        other.communicate(timeout=30)
    assert waiting.result(timeout=60)[0] == 1
