"""Whoever waits for a job hears why it does not run yet, and of attempts that failed."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.contract import corral_pb2 as pb
from corral.contract.views import Progress, StateChanged
from corral.core.job import QueueClass
from corral.sdk import start_notes
from corral.sdk.client import Client
from corral.sdk.handles import Sink
from corral.sdk.start_notes import StartNotes
from corral.sdk.submit.outgoing import OutgoingJob, function_job
from corral.sdk.transport.direct import Direct
from tests.eventually import eventually
from tests.sdk.orchestrator import Served


class Heard:
    """A stderr that can be looked at while others write to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text = ""
        monkeypatch.setattr(sys, "stderr", self)

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


def test_what_a_job_waits_for_is_said(
    client: Client, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, orchestrator = Heard(monkeypatch), served.orchestrator
    script = tmp_path / "script.py"
    script.write_text("")
    orchestrator.hold = True
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run_script, script)
        try:
            orchestrator.accepted.wait(15)
            job_id = next(iter(orchestrator.jobs))
            eventually(
                lambda: f"corral: waiting; `corral why {job_id}` says" in heard.text,
                "that it waits",
            )
            told = pb.Progress(message="building environment (2 requirements)")
            served.call(orchestrator.emit, job_id, progress=told)
            eventually(
                lambda: "corral: building environment (2 requirements)\n" in heard.text,
                "what is built",
            )
            failed = pb.StateChanged(state="queued", code="exception", message="RuntimeError: x")
            served.call(orchestrator.emit, job_id, state=failed)
            eventually(lambda: ": RuntimeError: x\n" in heard.text, "what failed")
        finally:
            served.call(orchestrator.release)
        running.result(60)
    assert "corral: Attempt " in heard.text


def test_nothing_is_said_where_nothing_is_shown(
    client: Client, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_notes, "SILENCE_S", 0.0)
    heard, orchestrator = Heard(monkeypatch), served.orchestrator
    orchestrator.hold = True
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run, len, ("abc",), output=None)
        orchestrator.accepted.wait(15)
        failed = pb.StateChanged(state="queued", code="exception", message="RuntimeError: x")
        served.call(orchestrator.emit, next(iter(orchestrator.jobs)), state=failed)
        served.call(orchestrator.release)
        assert running.result(60) == 3
    assert heard.text == ""


def progress(message: str) -> Progress:
    return Progress(job_id="01job", attempt=1, cursor="1", at=0.0, message=message)


def state(name: str) -> StateChanged:
    return StateChanged(job_id="01job", attempt=1, cursor="1", at=0.0, state=name)


def test_what_starts_in_time_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    notes = StartNotes("01job")
    for event in (state("placed"), progress("building environment (x)"), state("running")):
        notes.see(event)
    notes.silence()
    notes.see(progress("the job's own"))
    assert capsys.readouterr().err == ""


def test_each_step_is_said_once_however_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    notes = StartNotes("01job")
    notes.see(state("placed"))
    notes.see(progress("building environment (x)"))
    notes.silence()
    for percent in ("", "10%", "90%"):
        notes.see(progress(f"fetching \x1b[2J {percent}"))
    said = ["corral: building environment (x)", "corral: fetching \\x1b[2J"]
    assert [line.rstrip() for line in capsys.readouterr().err.splitlines()] == said


class Answered(Direct):
    """A job that had ended when its submission was answered."""

    def submit(self, job: OutgoingJob, hold_s: float = 0.0) -> pb.SubmitJobsReply:
        failed = pb.StateChanged(state="queued", code="exception", message="RuntimeError: x")
        events = [
            pb.JobEvent(job_id="01job", attempt=1, state=failed),
            pb.JobEvent(job_id="01job", attempt=2, state=pb.StateChanged(state="running")),
            pb.JobEvent(job_id="01job", attempt=2, ended=pb.Ended(state="succeeded")),
        ]
        return pb.SubmitJobsReply(job_ids=["01job"], events=events)


@pytest.mark.parametrize(("output", "said"), [("print", 1), (None, 0)])
def test_a_short_job_tells_of_its_failed_attempts_too(
    client: Client, capsys: pytest.CaptureFixture[str], output: Sink, said: int
) -> None:
    job = function_job(len, ("abc",), None, {}, QueueClass.INTERACTIVE)
    Answered(client._client._connection).run(job, output, None)
    assert capsys.readouterr().err == "corral: Attempt 1: RuntimeError: x\n" * said
