"""What the agent sees of NVIDIA GPUs, on a fake driver that speaks the real one's functions."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml as real
import pytest
from structlog.testing import capture_logs

from corral.agent.gpus import nvidia
from corral.agent.gpus.nvidia import DriverAway, Nvml
from corral.agent.gpus.watch import GpuWatch, Tenant, line_of
from corral.agent.image_servers import listening
from corral.core.images.backends import ComfyUIEntry, WebUIEntry
from corral.core.worker import GPU
from tests.eventually import eventually_async
from tests.fake_nvml import VARIABLE, FakeCards
from tests.fake_nvml import pynvml as fake

A, B = "GPU-aaaa", "GPU-bbbb"
DRIVER = "a fake, no driver"


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCards:
    made = FakeCards(tmp_path / "cards.json")
    monkeypatch.setenv(VARIABLE, made.environ[VARIABLE])
    return made


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and one below it, as a runner and its job."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    runner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        parent = psutil.Process(runner.pid)
        while not (below := parent.children()):
            assert runner.poll() is None
        yield runner.pid, below[0].pid
    finally:
        runner.communicate(b"\n", timeout=20)


@pytest.fixture
def stranger() -> Iterator[int]:
    """Somebody else's process: it hangs below nobody of ours."""
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; "
    code += "time.sleep(60)'], stdout=-3, stderr=-3, start_new_session=True).pid)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    process = psutil.Process(int(made.stdout))
    yield process.pid
    process.kill()


class Watched:
    """A watch, and what it told."""

    def __init__(self, **more: Any) -> None:
        self.ours: list[Tenant] = []
        self.found: list[tuple[GPU, ...]] = []
        self.changes = 0
        self.watch = GpuWatch(
            Nvml(fake),
            ours=lambda: self.ours,
            changed=self._changed,
            found=self.found.append,
            **more,
        )

    def _changed(self) -> None:
        self.changes += 1

    async def sees(self, true: Callable[[], object], what: str) -> None:
        await sees(self.watch, true, what)


async def sees(watch: GpuWatch, true: Callable[[], object], what: str) -> None:
    async def looked() -> object:
        await watch.look()
        return true()

    await eventually_async(looked, what)


def test_the_fake_speaks_what_the_real_one_does() -> None:
    said = set(re.findall(r"library\.(\w+)", inspect.getsource(nvidia)))
    assert said
    for name in said:
        assert hasattr(real, name), f"{name} is not in pynvml"
        assert hasattr(fake, name), f"{name} is not in the fake"
    for name, function in vars(fake).items():
        if name.startswith("nvml") and callable(function):
            ours = list(inspect.signature(function).parameters)
            assert ours == list(inspect.signature(getattr(real, name)).parameters), name


def test_cards_of_one_name_are_kept_apart(cards: FakeCards) -> None:
    cards.add(A, cores=10_496, mhz=1_695, temperature=61, busy=97)
    cards.add(B)
    cards.use(B, {1: 3.0})
    first, second = Nvml(fake).look()
    assert first.gpu == GPU(A, "Fake RTX 3090", 24.0, tflops=35.6, driver=DRIVER)
    assert (first.temperature_c, first.utilisation, first.used_gb) == (61.0, 0.97, 0.0)
    assert second.gpu == GPU(B, "Fake RTX 3090", 24.0, driver=DRIVER)
    assert (second.temperature_c, second.utilisation, second.used_gb) == (None, None, 3.0)


def test_a_lost_card_does_not_hide_the_other(cards: FakeCards) -> None:
    cards.add(A, lost=True)
    cards.add(B)
    assert [one.gpu.uuid for one in Nvml(fake).look()] == [B]


def test_without_a_driver_there_is_none(cards: FakeCards) -> None:
    cards.say(gone="Driver Not Loaded")
    driver = Nvml(fake)
    with pytest.raises(DriverAway, match="Driver Not Loaded"):
        driver.look()
    cards.say(gone="")
    cards.add(A)
    assert len(driver.look()) == 1, "one that comes back is opened anew"


async def test_memory_of_our_processes_is_ours_and_the_rest_is_not(
    cards: FakeCards, family: tuple[int, int], stranger: int
) -> None:
    cards.add(A)
    cards.add(B)
    seen = Watched()
    await seen.watch.first()
    seen.ours = [Tenant(family[0], (A,), busy=True)]
    cards.use(A, {family[0]: 1.0, family[1]: 8.0, stranger: 5.0}, used_gb=14.5)
    cards.use(B, {stranger: 2.0})
    await seen.sees(lambda: len(seen.watch.taken) == 2, "both are taken")
    first, second = seen.watch.readings
    assert (first.ours_gb, first.others_gb, first.free_gb) == (9.0, 5.5, 9.5)
    assert (second.ours_gb, second.others_gb) == (0.0, 2.0)
    assert seen.watch.taken == ((A, 5.5), (B, 2.0))
    cards.use(A, {family[1]: 8.0}, used_gb=8.0)
    await seen.sees(lambda: seen.watch.taken == ((B, 2.0),), "B alone is taken")
    assert seen.watch.readings[0].ours_gb == 8.0


@pytest.mark.parametrize("listed", [{}, {2**22 + 1: 9.0}, {os.getpid(): None}])
async def test_where_the_driver_does_not_say_whose_it_is_nothing_of_ours_counts_as_others(
    cards: FakeCards, listed: dict[int, float | None], family: tuple[int, int]
) -> None:
    """In containers and on Windows: no list, ids of another world, no figures."""
    cards.add(A)
    cards.use(A, {}, used_gb=2.0)
    seen = Watched()
    await seen.watch.first()
    assert seen.watch.taken == ((A, 2.0),), "before any of our jobs came"
    seen.ours = [Tenant(family[0], (A,), busy=True)]
    cards.use(A, listed, used_gb=11.0)
    await seen.sees(lambda: seen.watch.readings[0].ours_gb > 0, "it is ours")
    assert (seen.watch.readings[0].ours_gb, seen.watch.taken) == (9.0, ((A, 2.0),))
    seen.ours = [Tenant(family[0], (A,), busy=False)]
    cards.use(A, listed, used_gb=6.0)
    await seen.watch.look()
    assert (seen.watch.readings[0].ours_gb, seen.watch.taken) == (4.0, ((A, 2.0),))
    cards.use(A, listed, used_gb=16.0)
    await seen.sees(lambda: seen.watch.taken == ((A, 12.0),), "A is taken")
    assert seen.watch.readings[0].ours_gb == 4.0, "what a warm one keeps"
    seen.ours = []
    cards.use(A, {}, used_gb=12.0)
    await seen.sees(lambda: seen.watch.readings[0].ours_gb == 0.0, "nothing is ours")
    assert seen.watch.taken == ((A, 12.0),)


async def test_what_is_there_for_one_look_only_does_not_count(
    cards: FakeCards, stranger: int
) -> None:
    cards.add(A)
    seen = Watched()
    await seen.watch.first()
    cards.use(A, {stranger: 20.0})
    await seen.watch.look()
    assert not seen.watch.taken
    await seen.watch.look()
    assert (seen.watch.taken, seen.changes) == (((A, 20.0),), 1)
    cards.use(A, {})
    await seen.watch.look()
    assert not seen.watch.taken, "what is gone is gone at once"


async def test_a_driver_that_hangs_is_named_once_and_keeps_nobody(
    cards: FakeCards, stranger: int
) -> None:
    cards.add(A)
    cards.use(A, {stranger: 20.0})
    seen = Watched(within_s=0.05)
    await seen.watch.first()
    cards.say(hangs=True)
    with capture_logs() as said:
        for _ in range(3):
            await seen.watch.look()
        assert [one["event"] for one in said] == ["gpu_driver_hangs"]
        assert seen.watch.taken == ((A, 20.0),), "what was last seen stays"
        assert [one.name for one in threading.enumerate()].count("gpus") == 1
        cards.say(hangs=False)
        cards.use(A, {})
        await seen.sees(lambda: not seen.watch.taken, "nothing is taken")
    assert [one["event"] for one in said][:2] == ["gpu_driver_hangs", "gpu_driver_answers"]


def test_an_agent_ends_though_its_driver_hangs(cards: FakeCards) -> None:
    """asyncio would wait for a thread of its own."""
    cards.say(hangs=True)
    code = (
        "import asyncio, sys\n"
        "from corral.agent.gpus.watch import GpuWatch\n"
        "from corral.agent.gpus.nvidia import Nvml\n"
        "watch = GpuWatch(Nvml(), ours=list, changed=print, found=print, within_s=0.05)\n"
        "print(asyncio.run(watch.first()))"
    )
    environ = {**os.environ, **cards.environ}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("()\n")


async def test_a_driver_that_vanishes_is_named_once(cards: FakeCards) -> None:
    cards.add(A)
    seen = Watched()
    await seen.watch.first()
    cards.say(gone="Driver/library version mismatch")
    with capture_logs() as said:
        for _ in range(3):
            await seen.watch.look()
    assert [one["event"] for one in said if one["log_level"] == "error"] == ["gpu_driver_gone"]
    assert [one.lost for one in seen.watch.readings] == [True]
    assert seen.watch.taken == ((A, 24.0),), "no job shall try it"
    cards.say(gone="")
    await seen.watch.look()
    assert not seen.watch.taken
    assert not seen.watch.readings[0].lost


async def test_a_card_that_is_lost_gets_no_jobs_and_the_other_does(cards: FakeCards) -> None:
    cards.add(A)
    cards.add(B)
    seen = Watched()
    await seen.watch.first()
    cards.use(B, {}, lost=True)
    with capture_logs() as said:
        await seen.watch.look()
        assert not seen.watch.taken, "it may have been a moment"
        await seen.watch.look()
    assert seen.watch.taken == ((B, 24.0),)
    assert [one["event"] for one in said] == ["gpus_missing", "gpus_used_by_others"]
    cards.use(B, {}, lost=False)
    await seen.watch.look()
    assert not seen.watch.taken


async def test_a_driver_that_comes_late_is_found(cards: FakeCards) -> None:
    cards.say(gone="Driver Not Loaded")
    seen = Watched()
    with capture_logs() as said:
        assert await seen.watch.first() == ()
    assert not said, "most machines have none"
    cards.say(gone="")
    cards.add(A)
    await seen.sees(lambda: seen.found, "a card")
    assert [gpu.uuid for gpu in seen.found[0]] == [A]


HOLD = """
import pathlib, sys, time, torch
held = torch.ones(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
pathlib.Path(sys.argv[2]).touch()
time.sleep(600)
"""
APART = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=-3, stderr=-3).pid)
"""


@pytest.mark.gpu
async def test_a_real_driver_tells_whose_memory_is_whose(tmp_path: Path) -> None:
    """With PyTorch in this Python. It also shows whether the driver names owners here."""
    ours: list[Tenant] = []
    watch = GpuWatch(Nvml(), ours=lambda: ours, changed=lambda: None, found=lambda gpus: None)
    (gpu, *_) = await watch.first()
    before = watch.readings[0]
    print(gpu, before)

    apart = await asyncio.create_subprocess_exec(
        sys.executable, "-c", APART, HOLD, "6", str(tmp_path / "theirs"), stdout=subprocess.PIPE
    )
    stranger = psutil.Process(int((await apart.communicate())[0]))
    mine: asyncio.subprocess.Process | None = None
    try:
        await sees(watch, (tmp_path / "theirs").exists, "they hold it")
        await sees(watch, lambda: watch.readings[0].others_gb >= before.others_gb + 6, "theirs")
        theirs = watch.readings[0].others_gb
        mine = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD, "9", str(tmp_path / "ours")
        )
        ours.append(Tenant(mine.pid, (gpu.uuid,), busy=True))
        await sees(watch, (tmp_path / "ours").exists, "we hold it")
        await sees(watch, lambda: watch.readings[0].ours_gb >= 9, "ours")
        await sees(watch, lambda: abs(watch.readings[0].others_gb - theirs) < 1, "theirs beside")
        seen = Nvml().look()[0]
        print(watch.readings[0], {pid: line_of(pid) for pid in seen.processes})
        assert watch.taken == ((gpu.uuid, watch.readings[0].others_gb),)
    finally:
        stranger.kill()
        if mine is not None:
            mine.kill()
            await mine.wait()
    ours.clear()
    await sees(watch, lambda: watch.readings[0].others_gb < before.others_gb + 1, "all is free")


async def test_what_an_image_server_holds_is_held_for_our_jobs(
    cards: FakeCards, stranger: int
) -> None:
    cards.add(A)
    cards.use(A, {stranger: 6.0})
    told = Watched(servers=lambda: {stranger})
    await told.watch.first()
    await told.watch.look()
    (reading,) = told.watch.readings
    assert (reading.ours_gb, reading.others_gb) == (6.0, 0.0)
    assert told.watch.taken == ()


def test_image_servers_are_found_by_where_they_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        entries = (WebUIEntry(url=f"http://127.0.0.1:{port}"), ComfyUIEntry(url="http://far:80"))
        assert listening(entries) == {os.getpid()}
    assert not listening(entries)
