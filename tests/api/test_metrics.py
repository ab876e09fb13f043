"""`/metrics`: accepted by promtool, scraped by a real Prometheus, and true."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import corral
from corral.api import metrics
from corral.core.errors import CorralError
from corral.core.worker import Reading
from tests.controller.shell import worker
from tests.debian import needs
from tests.docs.pages import rows
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController
from tests.ports import free_port


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    with LiveController(tmp_path_factory.mktemp("metrics")) as started:
        yield started


def scrape(controller: LiveController) -> str:
    headers = {"Authorization": f"Bearer {controller.token}"}
    request = urllib.request.Request(f"{controller.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def values(text: str) -> dict[str, float]:
    """`name{labels}` -> value, labels in the order they were written."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def work(controller: LiveController) -> None:
    """Five that succeed, two that fail (one of them twice), one cancelled while it waits."""
    with corral.Client(controller.address, controller.token) as client:
        assert list(client.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
        for retries in (0, 1):
            with pytest.raises((CorralError, ZeroDivisionError)):
                client.run(divmod, (1, 0), output=None, retries=retries)
        waiting = client.submit(abs, (1,), gpus=1)
        waiting.cancel()


def test_gpus_are_told_as_their_drivers_do() -> None:
    known = Reading("GPU-1", 20.0, 3.5, 0.5, temperature_c=71.0, utilisation=0.4)
    silent = Reading("GPU-2", lost=True)
    machine = replace(worker("w1"), readings=(known, silent))
    found = {
        (sample.name.removeprefix("corral_gpu_"), sample.labels["gpu"]): sample.value
        for family in metrics.gpus([machine])
        for sample in family.samples
    }
    assert found["vram_free_bytes", "GPU-1"] == 20e9
    assert found["vram_ours_bytes", "GPU-1"] == 3.5e9
    assert found["vram_others_bytes", "GPU-1"] == 0.5e9
    assert (found["temperature_celsius", "GPU-1"], found["utilisation_ratio", "GPU-1"]) == (71, 0.4)
    assert (found["lost", "GPU-1"], found["lost", "GPU-2"]) == (0, 1)
    assert ("temperature_celsius", "GPU-2") not in found, "nobody said so"


def test_the_numbers_are_right_and_survive_a_restart(live: LiveController) -> None:
    work(live)
    found = values(scrape(live))
    assert found["corral_jobs_active"] == 0
    assert found['corral_jobs_submitted_total{class="batch"}'] == 6
    assert found['corral_jobs_submitted_total{class="interactive"}'] == 2
    assert found['corral_jobs_ended_total{state="succeeded"}'] == 5
    assert found['corral_jobs_ended_total{state="failed"}'] == 2
    assert found['corral_jobs_ended_total{state="cancelled"}'] == 1
    assert found['corral_attempts_total{failure="",outcome="succeeded"}'] == 5
    assert found['corral_attempts_total{failure="job",outcome="failed"}'] == 3
    assert found['corral_attempts_total{failure="",outcome="cancelled"}'] == 0
    assert found["corral_job_success_ratio"] == pytest.approx(5 / 7)
    took = 'corral_job_duration_seconds_%s{class="batch",workload="python"}'
    assert found[took % "count"] == 5
    assert 0 <= found[took % "sum"] < 60
    assert found['corral_queue_wait_seconds_count{class="batch"}'] == 5
    assert found['corral_queue_wait_seconds_count{class="interactive"}'] == 2
    assert found["corral_workers_connected"] == 1
    assert found["corral_commit_facts_sum"] == 8 + 8 + 8 + 1 + 8  # submitted to ended
    assert found["corral_commit_seconds_count"] == found["corral_commit_facts_count"] > 0
    assert found["corral_decision_seconds_count"] > 0
    assert found['corral_stored_bytes{part="journal"}'] > 0
    assert found["process_resident_memory_bytes"] > 0
    live.stop()
    live.start()
    again = values(scrape(live))
    assert again["corral_job_success_ratio"] == pytest.approx(5 / 7)
    assert again['corral_jobs_ended_total{state="succeeded"}'] == 0


def test_waiting_and_running_jobs_are_counted(live: LiveController) -> None:
    with corral.Client(live.address, live.token) as client:
        waiting = client.submit(abs, (1,), gpus=1)
        found = values(scrape(live))
        assert found["corral_jobs_active"] == 1
        assert found['corral_jobs{state="queued"}'] == 1
        assert found['corral_queue_depth{class="batch"}'] == 1
        assert found['corral_queue_oldest_wait_seconds{class="batch"}'] > 0
        assert found['corral_queue_oldest_wait_seconds{class="interactive"}'] == 0
        waiting.cancel()
    assert values(scrape(live))["corral_jobs_active"] == 0


def test_a_pause_is_seen(live: LiveController) -> None:
    with corral.Client(live.address, live.token) as client:
        assert values(scrape(live))["corral_queue_paused"] == 0
        client.admin.pause()
        assert values(scrape(live))["corral_queue_paused"] == 1
        client.admin.resume()
        assert values(scrape(live))["corral_queue_paused"] == 0


def test_every_metric_is_documented(live: LiveController) -> None:
    types = re.findall(r"^# TYPE (corral_\w+) (\w+)", scrape(live), re.MULTILINE)
    written = {name: cells[1] for name, cells in rows("docs/metrics.md").items()}
    assert dict(types) == written


@pytest.mark.parametrize("token", [None, "Bearer wrong", "Basic abc"])
def test_it_needs_a_token(live: LiveController, token: str | None) -> None:
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(f"{live.url}/metrics", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as answer:
        assert answer.code == 401
        assert json.load(answer)["error"]["code"] == "unauthorized"


def test_promtool_has_no_complaint(live: LiveController) -> None:
    promtool = needs("promtool", "prometheus")
    work(live)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape(live),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_real_prometheus_scrapes_it(live: LiveController, tmp_path: Path) -> None:
    program = needs("prometheus", "prometheus")
    address = f"127.0.0.1:{free_port()}"
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n"
        "  - job_name: corral\n"
        "    scrape_interval: 1s\n"
        f"    authorization: {{credentials_file: {live.home / 'token'}}}\n"
        f"    static_configs: [{{targets: ['{live.url.removeprefix('http://')}']}}]\n"
    )
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with corral.Client(live.address, live.token) as client:
            waiting = client.submit(abs, (1,), gpus=1)
            says(address, 'up{job="corral"}', "1")
            says(address, "corral_jobs_active", "1")
            waiting.cancel()
        says(address, "corral_jobs_active", "0")
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def says(address: str, query: str, wanted: str) -> None:
    """Until the value of a query is as wanted: a scrape comes when it comes."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"

    def as_wanted() -> bool:
        with urllib.request.urlopen(url, timeout=5) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
        return bool(result) and result[0]["value"][1] == wanted

    eventually(as_wanted, f"{query} is {wanted}", ignoring=OSError)
