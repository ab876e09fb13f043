"""What is asked of jobs that are over, on the command line."""

from __future__ import annotations

import json
import math
import subprocess

import pytest

import corral
from corral.contract.views import Progress
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController


def asked(controller: LiveController, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, *words], env=controller.environ, capture_output=True, text=True, timeout=60
    )


def speak(number: int) -> None:
    from corral import job

    print("this is", number)
    job.progress(0.5, "half of it")
    job.metric(loss=number)
    if number == 2:
        raise LookupError(number)


def diverge() -> None:
    from corral import job

    job.metric(loss=0.3, norm=1.0, step=1)
    job.metric(loss=float("nan"), norm=float("inf"), step=2)


def test_a_training_that_diverged_does_not_look_healthy(controller: LiveController) -> None:
    with corral.Client(controller.address, controller.token) as client:
        handle = client.submit(diverge)
        seen = [one for one in handle.events() if isinstance(one, Progress)]
        latest = handle.status().progress
    assert latest is not None
    assert math.isnan(latest.metrics["loss"])
    assert (latest.metrics["norm"], latest.step) == (math.inf, 2)
    assert math.isnan(seen[-1].metrics["loss"])
    assert "step 2  loss nan, norm inf" in asked(controller, "show", handle.id).stdout

    by_rest = Rest(controller)("GET", f"/jobs/{handle.id}").json["progress"]
    assert by_rest["metrics"] == {"loss": "NaN", "norm": "Infinity"}
    by_cli = asked(controller, "show", "--json", handle.id).stdout
    assert json.loads(by_cli, parse_constant=pytest.fail)["progress"] == by_rest


def save() -> None:
    from corral import job

    job.checkpoint(b"0" * 3_000_000)
    raise LookupError


def test_a_checkpoint_is_shown(controller: LiveController) -> None:
    with corral.Client(controller.address, controller.token) as client:
        handle = client.submit(save)
        with pytest.raises(LookupError):
            handle.result()
    shown = asked(controller, "show", handle.id).stdout.splitlines()
    (line,) = (one for one in shown if one.startswith("checkpoint "))
    assert "MB, " in line
    assert line.endswith(" ago")


def test_logs_of_a_batch_progress_of_the_past_and_words_of_failures(
    controller: LiveController,
) -> None:
    with corral.Client(controller.address, controller.token) as client:
        list(client.map(speak, range(3), batch="spoken", return_exceptions=True))
    logs = asked(controller, "logs", "spoken")
    assert logs.stdout == "this is 0\nthis is 1\nthis is 2\n"
    assert len([line for line in logs.stderr.splitlines() if line.endswith(":")]) == 3
    lines = map(json.loads, asked(controller, "logs", "--json", "spoken").stdout.splitlines())
    assert [line["text"] for line in lines if line["event"] == "output"][-1] == "this is 2\n"

    words = ("jobs", "--json", "--batch", "spoken", "--text")
    (failed,) = json.loads(asked(controller, *words, "LookupError").stdout)
    assert json.loads(asked(controller, *words, "KeyError").stdout) == []
    (good, *_) = json.loads(
        asked(controller, "jobs", "--json", "--batch", "spoken", "--state", "succeeded").stdout
    )
    told = asked(controller, "show", failed["job_id"]).stdout
    assert "50 %  half of it" in told
    told = asked(controller, "show", good["job_id"]).stdout
    assert "half of it" not in told
    assert "loss" in told
