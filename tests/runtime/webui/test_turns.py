"""One job at a time at a server: cancels, leftovers, progress and other people."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral import job
from corral.core.images.pipeline import Upscale
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui import errand
from corral.runtime.pipeline.webui.backend import WebUI
from corral.runtime.pipeline.webui.turn import Turn
from tests.eventually import eventually
from tests.fakes.webui import FakeWebUI
from tests.runtime.webui.rendering import (
    RECORD,
    Background,
    Open,
    Telling,
    raw,
    refused,
    render,
    square,
)

LONG = replace(RECORD, steps=1000)


def state(fake: FakeWebUI) -> dict[str, object]:
    return fake._state


def test_a_cancel_interrupts_and_the_partial_image_is_gone(webui: WebUI, fake: FakeWebUI) -> None:
    expected = render(webui).images[0].tobytes()
    fake.step_s = 0.02
    fake.stepped.clear()
    running = Background(webui, LONG)
    assert fake.stepped.wait(20)
    running.tell.cancel.set()
    running.wait()
    assert isinstance(running.error, job.Cancelled)
    assert running.rendered is None
    assert fake.interrupts >= 1
    assert state(fake)["job_count"] == 0
    fake.step_s = 0.0
    assert render(webui).images[0].tobytes() == expected


def test_a_cancel_that_comes_as_the_image_does_still_counts(webui: WebUI, fake: FakeWebUI) -> None:
    """The interrupted call answers 200 with an image, and nothing says that it is a part."""
    fake.step_s = 0.02
    running = Background(webui, LONG)
    assert fake.stepped.wait(20)
    raw(fake, "interrupt")
    running.tell.cancel.set()
    running.wait()
    assert running.rendered is None


def test_an_interrupt_that_is_forgotten_is_sent_again(webui: WebUI, fake: FakeWebUI) -> None:
    fake.step_s, fake.forgets_interrupts = 0.02, 2
    running = Background(webui, LONG)
    assert fake.stepped.wait(20)
    running.tell.cancel.set()
    running.wait()
    eventually(lambda: state(fake)["job_count"] == 0, "its turn is over")
    assert fake.interrupts >= 3


def test_a_cancel_does_not_wait_for_a_slow_model(
    webui: WebUI, fake: FakeWebUI, tmp_path: Path
) -> None:
    fake.load_s = 5.0
    running = Background(webui, replace(LONG, model="beta"))
    eventually(lambda: state(fake)["job_count"] == -1, "a model is being loaded")
    running.tell.cancel.set()
    running.wait()
    assert isinstance(running.error, job.Cancelled)
    assert state(fake)["job_count"] == -1, "it still loads"
    assert not Turn(fake.url, str(tmp_path)).take(), "our next interrupt would meet another's job"
    fake.load_s = 0.0
    assert render(webui).images  # after what was left there has ended
    assert fake.most_at_once == 1


def test_a_cancel_before_anything_was_sent(webui: WebUI, fake: FakeWebUI) -> None:
    tell = Telling()
    tell.cancel.set()
    with pytest.raises(job.Cancelled):
        webui.render(RECORD.stages[0], RECORD, (), tell)
    assert not fake.requests


def test_a_cancel_is_looked_for_while_the_server_hangs(opened: Open, fake: FakeWebUI) -> None:
    fake.frozen.set()
    running = Background(opened(answer_s=10.0))
    eventually(lambda: fake.held >= 1, "it asks for a turn")
    running.tell.cancel.set()
    running.wait()
    assert isinstance(running.error, job.Cancelled)
    assert fake.held == 1, "it has not even been asked again"
    fake.frozen.clear()


@pytest.mark.parametrize("button", ["interrupt", "skip"])
def test_somebody_elses_interrupt_is_no_image(webui: WebUI, fake: FakeWebUI, button: str) -> None:
    fake.step_s = 0.02
    running = Background(webui, LONG)
    assert fake.stepped.wait(20)
    raw(fake, button)
    running.wait()
    assert getattr(running.error, "code", "") == "exception"
    assert "interrupted" in str(running.error)


def test_what_a_killed_runner_left_is_interrupted(
    webui: WebUI, fake: FakeWebUI, tmp_path: Path
) -> None:
    """A client that is gone does not stop its job."""
    fake.step_s = 0.05
    runner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tests.runtime.webui.test_turns import LONG, Telling, WebUI\n"
            f"webui = WebUI(url={fake.url!r}, folder={str(tmp_path)!r})\n"
            "webui.render(LONG.stages[0], LONG, (), Telling())",
        ]
    )
    assert fake.stepped.wait(20)
    runner.kill()
    runner.wait()
    assert state(fake)["job_count"] == 1
    assert render(webui).images[0].size == (64, 64)
    assert fake.interrupts >= 1
    assert fake.most_at_once == 1


def test_what_died_with_its_server_is_not_looked_for(webui: WebUI, fake: FakeWebUI) -> None:
    """It would be somebody else's job that is interrupted."""
    fake.step_s, fake.die_at = 0.02, 2
    with pytest.raises(StageFailed):
        render(webui)
    fake.restart()
    person = threading.Thread(target=raw, args=(fake, "txt2img", {"steps": 30, "seed": 1}))
    fake.stepped.clear()
    person.start()
    assert fake.stepped.wait(20)
    render(webui)
    person.join(20)
    assert fake.interrupts == 0


def test_what_a_person_does_there_is_waited_for(webui: WebUI, fake: FakeWebUI) -> None:
    fake.step_s = 0.02
    person = threading.Thread(target=raw, args=(fake, "txt2img", {"steps": 30, "seed": 1}))
    person.start()
    assert fake.stepped.wait(20)
    running = Background(webui)
    eventually(lambda: "somebody else" in str(running.tell.told), "it says for whom it waits")
    running.wait()
    person.join(20)
    assert running.rendered is not None
    assert fake.interrupts == 0
    assert fake.most_at_once == 1


def test_an_upscaling_that_broke_off_is_not_waited_for(
    webui: WebUI, fake: FakeWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server never ends such a job: it says that it is busy until the next one."""
    monkeypatch.setattr(errand, "OTHERS_S", 2.0)
    fake.vram_pixels = 64 * 64
    assert refused(webui, RECORD, Upscale(), square()).code == "out_of_memory"
    assert state(fake)["job_count"] == 1
    assert render(webui).images


def test_one_request_at_a_time(opened: Open, fake: FakeWebUI) -> None:
    fake.step_s = 0.01
    all_of_them = [Background(opened(), replace(RECORD, seed=seed)) for seed in range(4)]
    for one in all_of_them:
        one.wait()
    assert all(one.rendered for one in all_of_them)
    assert fake.most_at_once == 1


def test_the_turn_is_free_when_its_holder_dies(tmp_path: Path) -> None:
    url = "http://gpu:7860"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from corral.runtime.pipeline.webui.turn import Turn\n"
            f"turn = Turn({url!r}, {str(tmp_path)!r}); assert turn.take(); turn.write(busy=True)\n"
            "print('taken', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder.stdout as said:
        assert said.readline() == b"taken\n"
        turn = Turn(url, str(tmp_path))
        assert not turn.take()
        holder.kill()
        holder.wait()
    assert turn.take()
    assert turn.read() == {"busy": True}
    turn.release()


def test_progress_with_steps_and_without_those_of_the_job_before(
    webui: WebUI, fake: FakeWebUI
) -> None:
    render(webui, replace(RECORD, steps=9))
    fake.step_s, fake.load_s, fake.settle_s = 0.02, 0.4, 0.4
    running = Background(webui, replace(RECORD, model="beta", steps=50))
    running.wait()
    told = running.tell.told
    fractions = [fraction for fraction, _ in told]
    messages = [message for _, message in told]
    assert fake.previews == 0, "a preview costs the server a picture, every time"
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert "starting" in messages
    assert not any("of 9" in message for message in messages)
    assert any(message.startswith("step ") and message.endswith("of 50") for message in messages)
