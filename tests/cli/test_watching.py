"""Looking at jobs and workers, and steering them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral.contract import corral_pb2 as pb
from corral.core.text import printable
from tests.cli.conftest import Corral
from tests.cli.test_running import Terminal
from tests.sdk.orchestrator import Orchestrator, Served


@pytest.fixture
def ids(corral: Corral, orchestrator: Orchestrator, script: Path) -> list[str]:
    """Three jobs that ended: two well, the last with code 4."""
    for word in ("0", "0", "4"):
        corral("run", "--name", f"job-{word}", str(script), word)
    return list(orchestrator.jobs)


def test_jobs(corral: Corral, ids: list[str]) -> None:
    table = corral("jobs").out
    assert [line.split()[0] for line in table.splitlines()] == ["JOB", *reversed(ids)]
    assert [job["job_id"] for job in corral("jobs", "--json", "--limit", "2").json] == ids[:0:-1]
    assert len(corral("jobs", "--json", "--all").json) == 3
    assert [j["name"] for j in corral("jobs", "--json", "--state", "failed").json] == ["job-4"]
    assert corral("jobs", "--json", "--active").json == []
    assert corral("jobs", "--active").err == "No such jobs.\n"
    assert "There is no state 'lost'" in corral("jobs", "--state", "lost").err


def test_which_job_is_meant(corral: Corral, ids: list[str]) -> None:
    assert corral("show", "--json", "last").json["job_id"] == ids[-1]
    assert corral("show", "--json", ids[0]).json["job_id"] == ids[0]
    assert corral("show", "--json", ids[1][:9].upper()).json["job_id"] == ids[1]
    assert "several jobs" in corral("show", "0").err
    unknown = corral("show", "--json", "zz")
    assert json.loads(unknown.err)["error"]["code"] == "job_not_found"
    assert (unknown.code, unknown.out) == (1, "")


def test_no_jobs_yet(corral: Corral, served: Served) -> None:
    assert "no jobs yet" in corral("show", "last").err
    assert "No jobs yet" in corral("jobs").err


def test_show(corral: Corral, ids: list[str], orchestrator: Orchestrator) -> None:
    orchestrator.jobs[ids[2]].blobs["plots/loss.png"] = bytes(2500)
    shown = corral("show", ids[2]).out
    assert "failed" in shown
    assert "exit_code: exit code 4" in shown
    assert "plots/loss.png  2.5 kB" in shown
    assert corral("show", "--json", ids[2]).json["failure"]["exit_code"] == 4


def test_logs(corral: Corral, ids: list[str]) -> None:
    assert corral("logs", ids[0]).out == "hello 0\nbye\n"
    assert corral("logs", "-f", ids[0]).out == "hello 0\nbye\n"
    lines = [json.loads(line) for line in corral("logs", "--json", ids[0]).out.splitlines()]
    assert [line["text"] for line in lines if line["event"] == "output"] == ["hello 0\n", "bye\n"]


def test_why(corral: Corral, ids: list[str]) -> None:
    assert "waits for a worker" in corral("why", "last").out
    assert "needs 2 GPUs, has 1" in corral("why", "last").out
    assert corral("why", "--json", "last").json["workers"][0]["worker"] == "attic"


def test_cancel_and_retry(corral: Corral, orchestrator: Orchestrator, script: Path) -> None:
    orchestrator.hold = True
    for _ in range(2):
        corral("submit", str(script))
    first, second = orchestrator.jobs
    assert corral("cancel", first, second).out == f"{first} cancelled\n{second} cancelled\n"
    again = corral("retry", first).out.strip()
    assert orchestrator.jobs[again].retry_of == first
    assert corral("retry", "--json", first).json[0]["retry_of"] == first


def test_extend(corral: Corral, orchestrator: Orchestrator, script: Path) -> None:
    orchestrator.hold = True
    corral("submit", str(script))
    (job,) = orchestrator.jobs
    assert corral("extend", job, "2h").out == f"{job} is ended after 3.0 h\n"
    assert corral("extend", "--json", job, "30m").json["duration"] == 12_600.0
    assert "12600" not in corral("show", job).out
    assert "3.5 h" in corral("show", job).out


def test_workers(corral: Corral, orchestrator: Orchestrator) -> None:
    assert "No workers yet" in corral("workers").err
    orchestrator.workers.append(
        pb.WorkerView(
            id="w",
            name="attic",
            engine="agents",
            connected=True,
            cpus=8,
            memory_gb=32,
            gpus=[
                pb.GpuView(
                    uuid="g",
                    name="RTX 3090",
                    vram_gb=24,
                    free=0.5,
                    others_gb=3.5,
                    temperature_c=61,
                    utilisation=0.97,
                )
            ],
            enforced={"files": "landlock", "memory": ""},
        )
    )
    shown = corral("workers").out
    assert "RTX 3090 24 GB, 50 % free, 3.5 GB used by others, 61 °C, 97 % busy" in shown
    assert "files: landlock, memory: nothing" in shown
    assert corral("workers", "--json").json[0]["enforced"] == {"files": "landlock", "memory": ""}
    assert "renders with" not in shown


def test_what_workers_render_with_and_which_server_is_silent(
    corral: Corral, orchestrator: Orchestrator
) -> None:
    orchestrator.workers.append(
        pb.WorkerView(
            id="w",
            name="attic",
            connected=True,
            models=[pb.ModelView(name="sdxl")],
            task_types=["webui", "render", "comfyui", "sketch"],
            servers=[
                pb.ImageServerView(kind="webui", url="http://a:1"),
                pb.ImageServerView(kind="comfyui", url="http://b:2", trouble="No answer from b."),
            ],
        )
    )
    assert corral("workers").out.splitlines()[-2:] == [
        "attic renders with webui at http://a:1, comfyui at http://b:2, sketch; 1 model known.",
        "attic: No answer from b.",
    ]


def test_a_worker_steers_no_terminal(served: Served) -> None:
    """Whatever it says of itself, by a controller that believed it."""
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e[red]x[/red][link=https://evil]y[/link]"
    served.orchestrator.workers.append(
        pb.WorkerView(
            id="w",
            name=f"attic{evil}",
            engine=evil,
            connected=True,
            circuit=evil,
            labels=[evil],
            gpus=[pb.GpuView(uuid="g", name=evil, vram_gb=24)],
            enforced={evil: evil},
            task_types=["webui"],
            servers=[pb.ImageServerView(kind=evil, url=evil, trouble=evil)],
        )
    )
    terminal = Terminal(served.home, "workers")
    terminal.until("no models known.")
    terminal.until(f": {printable(evil)}")  # the last line
    assert terminal.wait() == 0
    assert f"{printable(evil)} enforces " in terminal.seen
    for steering in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\x1b[31m"):
        assert steering not in terminal.seen


def test_workers_in_a_narrow_terminal(served: Served) -> None:
    enforced = {"files": "landlock", "privileges": "no_new_privs", "duration": "process_tree"}
    served.orchestrator.workers.append(
        pb.WorkerView(id="w", name="attic", connected=True, cpus=8, memory_gb=32, enforced=enforced)
    )
    terminal = Terminal(served.home, "workers")
    terminal.until("attic enforces duration: process_tree, files: landlock")
    assert "ENFORCED" not in terminal.seen
    assert terminal.wait() == 0
