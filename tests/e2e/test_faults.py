"""Two real workers and a real controller, and what happens to work when one of them is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral.agent.outbox import KEPT
from tests.e2e.test_joining import Machine, connected
from tests.eventually import eventually
from tests.live import CORRAL, LiveController
from tests.ports import free_port

YAML = (
    "tls: always\nadvertise: 127.0.0.1\ngrace_s: 600\nshutdown_grace_s: 0.2\n"
    "worker: {{cpus: 1, name: here, read_paths: ['{path}']}}\n"
)
"""A grace that no test waits for: whatever goes on does so because somebody said something."""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveController]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(YAML.format(path=tmp_path))
    ports = [f"--port={free_port()}", f"--grpc-port={free_port()}"]  # the same after a restart
    with LiveController(home, *ports) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        eventually(lambda: connected(made, "here"), "here is connected")
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    made.home.mkdir()
    (made.home / "corral.yaml").write_text(
        f"shutdown_grace_s: 0.2\nworker: {{cpus: 1, read_paths: ['{tmp_path}']}}\n"
    )
    yield made
    made.stop()


def joined(machine: Machine, client: corral.Client) -> psutil.Process:
    """The agent's process on that machine."""
    machine.join(client.admin.invite_worker(), "--name", "there")
    eventually(lambda: connected(client, "there"), "there is connected")
    assert machine.process is not None
    (agent,) = psutil.Process(machine.process.pid).children()
    return agent


def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.environ["CORRAL_ATTEMPT"]


def kept_result(path: Path) -> None:
    """Until it is written to its end."""
    eventually(lambda: path.exists() and path.read_bytes().endswith(b"}\n"), "a kept result")


def first_hangs() -> str:
    time.sleep(600 if os.environ["CORRAL_ATTEMPT"] == "1" else 0)
    return os.environ["CORRAL_ATTEMPT"]


def running_on(handle: corral.Handle, worker: str) -> bool:
    status = handle.status()
    return (status.state, status.worker) == ("running", worker)


def test_what_waits_behind_a_long_job_moves_to_a_worker_that_falls_idle(
    client: corral.Client, machine: Machine, tmp_path: Path
) -> None:
    long = client.submit(wait_for, (str(tmp_path / "go"),))
    eventually(lambda: running_on(long, "here"), "it runs here")
    short = [client.submit(abs, (-number,)) for number in range(4)]
    eventually(lambda: short[0].status().state == "placed", "it is placed behind")
    joined(machine, client)
    assert [one.result(30) for one in short] == [0, 1, 2, 3]
    assert {one.status().worker for one in short} == {"there"}
    assert any("recalled" in line for line in short[0].why().history)
    (tmp_path / "go").touch()
    assert long.result(20) == "1", "it stayed where it was"


def test_a_killed_agent_comes_back_and_its_work_is_free_at_once(
    live: LiveController, client: corral.Client
) -> None:
    hanging = client.submit(first_hangs)
    eventually(lambda: running_on(hanging, "here"), "it runs here")
    assert live.process is not None
    (agent,) = psutil.Process(live.process.pid).children()
    agent.kill()
    assert hanging.result(30) == "2"
    assert any("came back without it" in line for line in hanging.why().history)


@pytest.mark.long
def test_what_a_worker_held_that_said_goodbye_goes_elsewhere_at_once(
    client: corral.Client, machine: Machine
) -> None:
    agent = joined(machine, client)
    client.admin.change_worker("here", draining=True)
    hanging = client.submit(first_hangs)
    eventually(lambda: running_on(hanging, "there"), "it runs there")
    behind = client.submit(abs, (-1,))
    eventually(lambda: behind.status().state == "placed", "it is placed behind")
    agent.send_signal(signal.SIGTERM)
    machine.ended()
    told = behind.status()
    assert (told.state, told.attempt) == ("queued", 1), "it was returned, and not sent there again"
    client.admin.change_worker("here", draining=False)
    assert hanging.result(30) == "2"
    assert behind.result(30) == 1
    assert hanging.status().worker == "here"


def test_a_result_outlives_controller_and_agent(
    live: LiveController, client: corral.Client, machine: Machine, tmp_path: Path
) -> None:
    agent = joined(machine, client)
    client.admin.change_worker("here", draining=True)
    handle = client.submit(wait_for, (str(tmp_path / "go"),))
    eventually(lambda: running_on(handle, "there"), "it runs there")
    live.kill()
    (tmp_path / "go").touch()
    kept_result(machine.home / "worker" / KEPT)
    agent.kill()
    machine.ended()
    live.start()
    with corral.Client(home=live.home) as again:
        machine.join(again.admin.invite_worker())
        assert again.job(handle.id).result(30) == "1", "the same attempt, on a new agent"


@pytest.mark.long
def test_a_result_that_comes_too_late_changes_nothing(
    live: LiveController, client: corral.Client, machine: Machine, tmp_path: Path
) -> None:
    agent = joined(machine, client)
    client.admin.change_worker("here", draining=True)
    handle = client.submit(wait_for, (str(tmp_path / "go"),))
    eventually(lambda: running_on(handle, "there"), "it runs there")
    client.admin.change_worker("here", draining=False)
    live.kill()
    (tmp_path / "go").touch()
    kept = machine.home / "worker" / KEPT
    kept_result(kept)
    agent.kill()
    machine.ended()
    yaml = live.home / "corral.yaml"
    yaml.write_text(yaml.read_text().replace("grace_s: 600", "grace_s: 1"))
    live.start()
    with corral.Client(home=live.home) as again:
        late = again.job(handle.id)
        assert late.result(30) == "2"
        machine.join(again.admin.invite_worker())
        eventually(lambda: "late result of attempt 1" in str(late.why().history), "a late result")
        assert late.result(5) == "2"
        eventually(lambda: not kept.exists(), "it is kept no more")


@pytest.mark.long
def test_a_worker_that_can_start_nothing_does_not_eat_the_retries(
    client: corral.Client, machine: Machine
) -> None:
    """What its runners are made of is gone from its disk: whatever it gets dies at once."""
    yaml = machine.home / "corral.yaml"
    yaml.write_text(yaml.read_text().replace("cpus: 1,", "cpus: 2, weight: 9,"))
    agent = joined(machine, client)
    shutil.rmtree(machine.home / "worker" / "kit")
    for runner in agent.children(recursive=True):
        runner.kill()
    handles = [client.submit(abs, (-number,)) for number in range(30)]
    assert [handle.result(60) for handle in handles] == list(range(30))
    assert {handle.status().worker for handle in handles} == {"here"}
    lost = [line for handle in handles for line in handle.why().history if "process_died" in line]
    assert 3 <= len(lost) <= 8, "those that opened its circuit, and what was beginning then"
    view = next(worker for worker in client.workers() if worker.name == "there")
    assert "its circuit is open" in view.circuit


def test_a_worker_in_its_grace_is_told_of(
    live: LiveController, client: corral.Client, machine: Machine, tmp_path: Path
) -> None:
    agent = joined(machine, client)
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(600)\n")
    words = ["run", "--worker", "there", str(script)]
    with subprocess.Popen([CORRAL, *words], env=live.environ, stderr=subprocess.PIPE) as following:
        (job,) = eventually(lambda: client.jobs(states=["running"]), "it runs")
        handle = client.job(job.job_id)
        assert handle.status().worker_silent_s == 0
        assert "Nothing was heard" not in handle.why().summary
        agent.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: handle.status().worker_silent_s, "it is silent")
            assert handle.status().state == "running"
            assert "Nothing was heard of there for" in handle.why().summary
            shown = subprocess.run(
                [CORRAL, "show", job.job_id], env=live.environ, capture_output=True, text=True
            )
            assert "is waited for, as long as `grace_s` says" in shown.stdout
            assert following.stderr is not None
            said = b""
            while b"Nothing was heard of there for" not in said:
                said = following.stderr.readline()
                assert said, "it ended without a word of that"
        finally:
            agent.send_signal(signal.SIGCONT)
        eventually(lambda: not handle.status().worker_silent_s, "it is back")
        handle.cancel()
        following.wait(30)
