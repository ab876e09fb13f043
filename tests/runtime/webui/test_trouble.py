"""Servers that refuse, run out of memory, hang and die."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from corral.runtime.pipeline.webui import errand
from corral.runtime.pipeline.webui.backend import WebUI
from corral.runtime.pipeline.webui.failures import of_answer
from tests.eventually import eventually
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES
from tests.runtime.webui.rendering import RECORD, Background, Open, raw, refused, render, sent

SLOW = replace(RECORD, steps=40)


@pytest.mark.parametrize(
    ("status", "error", "errors", "detail", "code"),
    [
        (500, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "",
         "out_of_memory"),
        (500, "RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory", "",
         "out_of_memory"),
        (500, "HTTPException", "", "Invalid encoded image", "bad_job"),
        (422, "HTTPException", "", "Script 'x' not found", "stage_missing"),
        (422, "HTTPException", "", "always on script ADetailer not found", "stage_missing"),
        (404, "HTTPException", "", "Init image not found", "bad_job"),
        (404, "HTTPException", "", "Sampler not found", "model_missing"),
        (500, "AssertionError", "could not find upscaler named x", "", "model_missing"),
        (500, "RuntimeError", "model 'x' not found", "", "model_missing"),
        (500, "RuntimeError", "CUDA error: device-side assert triggered", "", "backend_down"),
        (500, "RuntimeError", "\"LayerNormKernelImpl\" not implemented for 'Half'", "",
         "stage_missing"),
        (500, "AssertionError", "changing settings is disabled", "", "stage_missing"),
        (500, "RuntimeError", "Could not allocate tensor: not enough GPU video memory", "",
         "out_of_memory"),
        (500, "FileNotFoundError", "No checkpoints found. When searching for", "", "model_missing"),
        (500, "ZeroDivisionError", "division by zero", "", "exception"),
        (500, "NansException", "A tensor with all NaNs was produced in Unet.", "", "exception"),
    ],
)  # fmt: skip
def test_failures_by_their_body(
    status: int, error: str, errors: str, detail: str, code: str
) -> None:
    body = json.dumps({"error": error, "detail": detail, "body": "", "errors": errors})
    failed = of_answer("http://gpu:7860", status, body)
    assert failed.code == code
    assert (errors or detail) in failed.message


def test_settings_that_are_broken_there_are_no_fault_of_the_job(
    webui: WebUI, fake: FakeWebUI
) -> None:
    fake.config["CLIP_stop_at_last_layers"] = "two"
    failed = refused(webui)
    assert failed.code == "stage_missing"
    assert "config.json" in failed.message


def test_the_status_alone_says_nothing() -> None:
    invalid = json.dumps({"detail": [{"loc": ["body", "steps"], "msg": "not an integer"}]})
    assert of_answer("http://gpu:7860", 422, invalid).code == "bad_job"
    assert of_answer("http://gpu:7860", 502, "<html>Bad Gateway</html>").code == "backend_down"


def test_a_card_that_is_too_small(webui: WebUI, fake: FakeWebUI) -> None:
    fake.vram_pixels = 64 * 64
    assert refused(webui, replace(RECORD, width=128)).code == "out_of_memory"
    assert render(webui).images  # it survives


def test_the_wrong_password(opened: Open, fake: FakeWebUI) -> None:
    fake.auth = ("ada", "engine")
    failed = refused(opened(username="ada", password="wrong"))
    assert failed.code == "stage_missing"  # not down: starting it again would not help
    assert "username" in failed.message
    assert "--api-auth" in refused(opened()).message
    assert render(opened(username="ada", password="engine")).images


def test_a_server_without_its_api(opened: Open, fake: FakeWebUI) -> None:
    failed = refused(opened(url=f"{fake.url}/elsewhere"))
    assert failed.code == "stage_missing"
    assert "--api" in failed.message


def test_a_server_that_is_busy_for_somebody_else_is_not_down(
    webui: WebUI, fake: FakeWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake._state["job_count"] = 1
    monkeypatch.setattr(errand, "OTHERS_S", 0.3)
    assert refused(webui).code == "stage_missing"


def test_a_server_that_is_not_there(webui: WebUI, fake: FakeWebUI) -> None:
    fake.die()
    failed = refused(webui)
    assert failed.code == "backend_silent", "the job has begun nothing there"
    assert "Nothing answers" in failed.message


def test_a_server_that_dies_while_it_renders(webui: WebUI, fake: FakeWebUI) -> None:
    expected = render(webui).images[0].tobytes()
    fake.step_s, fake.die_at = 0.01, 2
    failed = refused(webui)
    assert failed.code == "backend_down"
    assert "died" in failed.message
    fake.restart()
    assert render(webui).images[0].tobytes() == expected


def test_no_job_holds_its_place_while_it_waits_for_a_server(webui: WebUI, fake: FakeWebUI) -> None:
    fake.step_s, fake.die_at = 0.01, 2
    assert refused(webui).code == "backend_down", "it died under the job"
    assert refused(webui).code == "backend_silent"
    fake.restart()
    assert render(webui).images


def test_a_batch_that_would_kill_it_is_never_sent(webui: WebUI, fake: FakeWebUI) -> None:
    """A hundred thousand images at once are accepted, and are the end of the process."""
    with pytest.raises(Exception, match="disconnected"):
        raw(fake, "txt2img", {"batch_size": 100_000})
    fake.restart()
    render(webui, replace(RECORD, batch_size=64))
    assert max(body["batch_size"] for body in sent(fake, "txt2img")[1:]) == 8


def test_one_or_two_timeouts_are_a_busy_server(opened: Open, fake: FakeWebUI) -> None:
    fake.step_s = 0.05
    running = Background(opened(answer_s=0.4), SLOW)
    assert fake.stepped.wait(20)
    fake.frozen.set()
    eventually(lambda: fake.held >= 2, "two requests are held")
    fake.frozen.clear()
    running.wait()
    assert running.rendered is not None


def test_three_timeouts_in_a_row_are_a_crash(opened: Open, fake: FakeWebUI) -> None:
    fake.step_s = 0.2
    running = Background(opened(answer_s=0.2), SLOW)
    assert fake.stepped.wait(20)
    fake.frozen.set()
    running.wait()
    assert "3 times in a row" in str(running.error)
    assert fake.held == 3


def test_an_early_timeout_is_asked_again(opened: Open, fake: FakeWebUI) -> None:
    fake.frozen.set()
    running = Background(opened(answer_s=0.4))
    eventually(lambda: fake.held >= 2, "two requests are held")
    fake.frozen.clear()
    running.wait()
    assert running.rendered is not None


@pytest.mark.parametrize("waiting", ["refresh-checkpoints", "txt2img"])
def test_a_server_that_loads_its_first_model_is_not_down(
    opened: Open, fake: FakeWebUI, waiting: str
) -> None:
    """It answers, says that it is idle, and does nothing that we ask for until the model is there:
    no setting that needs it, no look into its folders, no image."""
    if waiting == "refresh-checkpoints":
        fake.unseen = {TITLES[0]}
    with fake.queue:
        running = Background(opened(answer_s=0.3))
        eventually(lambda: str(fake.requests).count("'progress'") > 9, "it asks ten times")
        assert fake.requests[-1][0] == "progress"
        assert [path for path, _ in fake.requests if path != "progress"][-1] == waiting
    running.wait()
    assert running.rendered is not None


def test_progress_that_fails_does_not_end_a_job(webui: WebUI, fake: FakeWebUI) -> None:
    fake.step_s = 0.02
    running = Background(webui, SLOW)
    assert fake.stepped.wait(20)
    fake.auth = ("somebody", "else")
    eventually(lambda: fake.turned_away >= 2, "two are turned away")
    fake.auth = None
    running.wait()
    assert running.rendered is not None
