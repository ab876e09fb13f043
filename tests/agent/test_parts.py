"""The small parts, one by one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import Raw

from corral.agent import inventory
from corral.agent.attempts.attempt import AttemptKind, HeldAttempt, Recipe
from corral.agent.attempts.roll import WaitingAttempts
from corral.agent.environments import manifest
from corral.agent.environments.builder import Spec
from corral.agent.gpus.nvidia import Nvml
from corral.agent.runners import process_tree
from corral.agent.runners.cgroups import Cgroups
from corral.agent.runners.pool import Processors, Runners
from corral.agent.runners.runner import RunDirectory
from corral.core.errors import InvalidSettings
from corral.core.job import Needs, QueueClass
from corral.core.worker import GPU, Capabilities, Capacity, DeclaredGPU
from corral.protocol.messages import JobDispatch
from corral.runtime.environments.kit import RUNNER
from corral.runtime.files.run_folder import SETTLED_NS
from corral.runtime.process import posix
from corral.settings import WorkerSettings
from corral.variables import agent_environment, passed_environment

# --- inventory and kit ---


def test_declared_gpus_have_ids_that_a_driver_knows() -> None:
    declared = tuple(DeclaredGPU("RX 7900", 24, id) for id in ("", "", "GPU-7f"))
    assert [gpu.uuid for gpu in inventory.declared_gpus(declared)] == ["0", "1", "GPU-7f"]
    with pytest.raises(InvalidSettings, match="two GPUs have the id '1'"):
        inventory.declared_gpus((DeclaredGPU("A", 24, "1"), DeclaredGPU("B", 24)))


def test_declared_gpus_count_only_where_none_is_detected() -> None:
    settings = WorkerSettings(gpus=(DeclaredGPU("RX 7900", 24),))
    detected = (GPU("GPU-1", "RTX 3090", 24),)
    assert inventory.capabilities(settings, detected).gpus == detected
    assert [gpu.name for gpu in inventory.capabilities(settings).gpus] == ["RX 7900"]


@pytest.mark.gpu
def test_real_gpus_are_found() -> None:
    assert Nvml().look()[0].gpu.uuid.startswith("GPU-")


def test_settings_override_what_is_found() -> None:
    has = inventory.capabilities(WorkerSettings(cpus=7, memory_gb=3, allow_code=False))
    assert (has.cpus, has.memory_gb, has.workloads) == (7, 3, ("pipeline",))


def test_jobs_inherit_how_to_find_things_and_no_secrets() -> None:
    environ = {
        "PATH": "/bin", "LC_ALL": "C", "https_proxy": "p", "SSL_CERT_FILE": "c", "CUDA_HOME": "d",
        "CORRAL_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "HOME": "/home/me",
    }  # fmt: skip
    assert "secret" not in passed_environment(environ).values()
    assert set(passed_environment(environ)) == set(list(environ)[:5])


def test_a_kit_is_made_once_and_old_ones_go(tmp_path: Path) -> None:
    made = manifest.assemble_kit(tmp_path)
    assert (made / RUNNER).exists()
    assert (made / "cloudpickle" / "__init__.py").exists()
    assert list(made.glob("corral/runtime/__pycache__/supervisor.*.pyc"))
    stamp = made.stat().st_mtime_ns
    (tmp_path / "older").mkdir()
    assert manifest.assemble_kit(tmp_path) == made
    assert made.stat().st_mtime_ns == stamp
    manifest.drop_other_kits(tmp_path, made)
    assert list(tmp_path.iterdir()) == [made]


def test_a_damaged_kit_is_made_anew(tmp_path: Path) -> None:
    """A power cut leaves every name, and nothing in any of them; a disk may spoil a single one."""
    made = manifest.assemble_kit(tmp_path)
    was = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    for path in was:
        path.write_bytes(b"")
    assert manifest.assemble_kit(tmp_path) == made
    assert _kept(made).items() >= _sources(was).items()
    [bytecode] = made.glob(f"corral/__pycache__/job.{sys.implementation.cache_tag}.pyc")
    bytecode.write_bytes(bytecode.read_bytes()[:100])
    manifest.assemble_kit(tmp_path)
    assert len(bytecode.read_bytes()) > 100


def test_bytecode_of_another_python_stays_once_it_was_vouched_for(tmp_path: Path) -> None:
    made = manifest.assemble_kit(tmp_path)
    half, whole = (made / "corral" / "__pycache__" / f"job.other-{n}.pyc" for n in (1, 2))
    whole.write_bytes(b"whole")
    manifest.list_files(made)
    half.write_bytes(b"half")
    assert manifest.assemble_kit(tmp_path) == made
    assert whole.exists()
    assert not half.exists()


def _kept(kept: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}


def _sources(files: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: data for path, data in files.items() if path.suffix == ".py"}


# --- waiting ---


def attempt(
    arrival: int, needs: Needs, *, interactive: bool = False, priority: int = 0
) -> HeldAttempt:
    dispatch = JobDispatch(
        job=f"job{arrival}",
        attempt=1,
        document=Raw(b"{}"),
        digest="",
        token="",
        needs=needs,
        queue_class=QueueClass.INTERACTIVE if interactive else QueueClass.BATCH,
        priority=priority,
    )
    return HeldAttempt(dispatch, Recipe(AttemptKind("function")), Spec("3.11"), arrival)


def order(waiting: WaitingAttempts, capacity: Capacity) -> list[str]:
    found = []
    while (next_one := waiting.next(capacity)) is not None:
        found.append(next_one[0].dispatch.job)
    return found


def test_class_priority_and_arrival_decide_across_needs() -> None:
    waiting = WaitingAttempts()
    small, other = Needs(cpus=0.1), Needs(cpus=0.2)
    waiting.add(attempt(1, small))
    waiting.add(attempt(2, other, priority=1))
    waiting.add(attempt(3, other, interactive=True))
    waiting.add(attempt(4, small))
    capacity = Capacity(Capabilities(cpus=4, memory_gb=1))
    assert order(waiting, capacity) == ["job3", "job2", "job1", "job4"]
    assert waiting.size == 0


def test_what_does_not_fit_holds_up_what_is_behind_it() -> None:
    waiting = WaitingAttempts()
    full = Capacity(Capabilities(cpus=1, memory_gb=1))
    large = attempt(1, Needs(cpus=2))
    waiting.add(large)
    waiting.add(attempt(2, Needs(cpus=0.1)))
    assert order(waiting, full) == []
    waiting.drop(large)
    assert order(waiting, full) == ["job2"]


def test_work_without_a_gpu_passes_work_that_waits_for_one() -> None:
    waiting = WaitingAttempts()
    capacity = Capacity(Capabilities(cpus=4, memory_gb=1))
    waiting.add(attempt(1, Needs(gpus=1)))
    waiting.add(attempt(2, Needs(gpu_tenths=1)))
    waiting.add(attempt(3, Needs()))
    assert order(waiting, capacity) == ["job3"]


# --- run directories ---


def test_a_run_directory_knows_whether_it_is_empty(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.make()
    assert directory.empty()
    past = os.stat(directory.path).st_ctime_ns - 10 * SETTLED_NS
    (Path(directory.work) / "file").write_text("x")
    os.utime(directory.work, ns=(past, past))
    assert not directory.empty()


def test_removing_never_follows_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("precious")
    directory = RunDirectory(tmp_path / "r1")
    directory.make()
    os.symlink(kept, f"{directory.tmp}/link")
    os.rmdir(directory.work)
    os.symlink(kept, directory.work)
    assert not directory.empty()
    directory.remove()
    assert not os.path.exists(directory.path)
    assert (kept / "file").read_text() == "precious"


def without_capabilities(call: Callable[[], object]) -> None:
    """As one whom permissions keep out; in a thread, which alone loses what root may."""

    def called() -> None:
        header = (ctypes.c_uint32 * 2)(posix.CAPABILITY_VERSION_3, 0)
        assert posix.libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())) == 0
        call()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(called).result()


def closed_folders(top: Path, *, deep: int) -> None:
    """As a job may leave them: closed to everybody, and deeper than a path can name."""
    at = os.open(top, os.O_RDONLY)
    for _ in range(deep):
        os.mkdir("folder", dir_fd=at)
        inner = os.open("folder", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=at))
    os.fchmod(at, 0)
    os.close(at)


@pytest.mark.parametrize("deep", [1, 3000])
def test_what_a_job_closed_or_buried_is_removed(tmp_path: Path, deep: int) -> None:
    directory = RunDirectory(tmp_path / "r1")
    directory.make()
    closed_folders(Path(directory.work), deep=deep)
    without_capabilities(directory.remove)
    assert not os.path.exists(directory.path)


@pytest.mark.parametrize("deep", [1, 3000])
def test_no_leftovers_of_a_job_keep_an_agent_from_starting(tmp_path: Path, deep: int) -> None:
    def runners() -> Runners:
        settings = WorkerSettings()
        return Runners(tmp_path, tmp_path / "kit", Cgroups(tmp_path), settings=settings, root="")

    runners().clear_leftovers()
    directory = RunDirectory(tmp_path / "runs" / "r1")
    directory.make()
    closed_folders(Path(directory.work), deep=deep)
    without_capabilities(runners().clear_leftovers)
    assert not os.listdir(tmp_path / "runs")


def test_a_kit_that_a_job_closed_is_made_anew(tmp_path: Path) -> None:
    """Landlock says nothing of modes: a job can change those of all that its user owns."""
    made = manifest.assemble_kit(tmp_path)
    os.chmod(made / "corral" / "runtime", 0)
    without_capabilities(lambda: manifest.assemble_kit(tmp_path))
    assert (made / RUNNER).exists()


# --- processors ---


def test_runners_get_the_least_busy_processors() -> None:
    processors = Processors([0, 1, 2, 3])
    first = processors.choose(2)
    processors.take(first)
    second = processors.choose(2)
    assert set(first) | set(second) == {0, 1, 2, 3}
    assert processors.crowded(first)
    processors.take(second)
    assert not processors.crowded(first)
    assert (processors.count(0.5), processors.count(3.0), processors.count(4.0)) == (1, 3, 0)


def test_of_idle_processors_a_runner_gets_the_agents_own() -> None:
    processors = Processors([0, 1, 2, 3], lambda: 2)
    assert processors.choose(1) == (2,)
    processors.take((2,))
    assert processors.choose(1) == (0,), "not while another runner is busy there"


# --- process trees ---


def test_a_sweep_ends_what_carries_the_marker_of_this_home(tmp_path: Path) -> None:
    environ = {**os.environ, process_tree.HOME_MARKER: str(tmp_path)}
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, env=environ) as left, subprocess.Popen(command) as other:
        try:
            assert process_tree.sweep(str(tmp_path)) == 1
            assert left.poll() is not None
            assert other.poll() is None
        finally:
            other.kill()


def test_a_sweep_finds_a_supervisor_that_is_closed_to_others(tmp_path: Path) -> None:
    """As an ordinary user would, which root cannot try but in a process without its powers."""
    runner = tmp_path / "kit" / "digest" / "runner.py"
    runner.parent.mkdir(parents=True)
    runner.write_text(
        "import signal, time\nfrom corral.runtime.process import posix\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # whatever these tests run under
        "print(posix.close_to_others(), flush=True)\ntime.sleep(600)\n"
    )
    sweeping = (
        "import sys\nfrom corral.agent.runners import process_tree\n"
        "from corral.runtime.process import posix\n"
        "posix.drop_insight()\nprint(process_tree.sweep(sys.argv[1]))\n"
    )
    command = [sys.executable, str(runner)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as left:
        try:
            assert left.stdout is not None
            assert left.stdout.readline() == b"True\n"
            swept = [sys.executable, "-c", sweeping, str(tmp_path)]
            assert subprocess.check_output(swept) == b"1\n"
            assert left.wait(20) == -signal.SIGHUP  # by which a real one ends what is below it
        finally:
            left.kill()


def test_the_agent_inherits_settings_and_no_secrets() -> None:
    environ = {
        "PATH": "/bin", "HOME": "/home/me", "CORRAL_GRACE_S": "5", "UV_CACHE_DIR": "/cache",
        "CORRAL_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "HF_TOKEN": "secret",
    }  # fmt: skip
    assert set(agent_environment(environ)) == set(list(environ)[:4])


def test_a_tree_ends_with_the_daemons_that_left_it(tmp_path: Path) -> None:
    daemon = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {daemon!r}]).wait()"
    environ = {
        **os.environ,
        process_tree.HOME_MARKER: str(tmp_path),
        process_tree.RUNNER_MARKER: "r1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        below = psutil.Process(int(process.stdout.readline()))
        tree = process_tree.Tree(process.pid, home=str(tmp_path), runner="r1")
        assert len(tree.members()) == 2
        assert tree.memory_bytes(1 << 40) > 1 << 20
        process.kill()
        process.wait()
        tree.exited_at = time.time()
        assert below.is_running()
        assert asyncio.run(tree.end(0.0, lambda: False))
        assert not process_tree._alive(below)


def test_frames_of_a_runner_are_read_by_their_kind() -> None:
    from corral.agent.runners.frames import OutputLine, Result, StartedFrame, decode_lines

    lines = b'{"frame":"started"}\n{"frame":"output","stream":"stdout","text":"x"}\n'
    lines += b'{"frame":"result","result":null,"retire":true}\n'
    started, output, result = decode_lines(lines)
    assert (started, output) == (StartedFrame(), OutputLine("stdout", "x"))
    assert result == Result(None, retire=True)
    with pytest.raises(msgspec.DecodeError):
        decode_lines(b"nonsense\n")


def test_what_its_owner_says_of_a_worker_is_told_when_it_registers() -> None:
    said = msgspec.convert(
        {"class": "low-latency", "reserved_for": "interactive", "weight": 2}, WorkerSettings
    )
    told = inventory.capabilities(said)
    assert (told.suits, told.reserved_for, told.weight) == ("low-latency", "interactive", 2.0)
