"""A prompt is followed to its end, whatever the connection, the server and people do meanwhile."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import msgspec
import pytest

from corral import job
from corral.core.images.backends import ComfyUIEntry
from corral.core.images.pipeline import ADetailer, Img2Img, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui.backend import ComfyUI
from corral.runtime.pipeline.comfyui.server import ComfyUIServer, Events
from corral.runtime.pipeline.images import pixel_sha256
from corral.runtime.pipeline.kinds import offer_of, open_backend
from tests.eventually import PATIENCE_S
from tests.fakes.comfyui import FakeComfyUI
from tests.fakes.comfyui_nodes import picture
from tests.runtime.comfyui.rendering import (
    RECORD,
    Rendering,
    Told,
    changed,
    held,
    render,
)


def test_progress_has_the_step_and_only_grows(server: FakeComfyUI, backend: ComfyUI) -> None:
    told = Told()

    render(backend, changed(batch_size=2), told=told)

    fractions = [fraction for fraction, _ in told.said]
    assert fractions == sorted(fractions)
    assert fractions[0] >= 0
    assert fractions[-1] <= 1
    said = [message for _, message in told.said]
    assert "image 1 of 2, loading sdxl_1.0" in said
    assert "image 2 of 2, step 3 of 4" in said


def test_progress_does_not_begin_again_with_each_face(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.packs, server.faces = True, 2
    told = Told()

    render(backend, stage=ADetailer(), images=(picture("one", (64, 64)),), told=told)

    fractions = [fraction for fraction, _ in told.said]
    assert [said for _, said in told.said].count("details, step 1 of 4") == 2
    assert fractions == sorted(fractions)


def test_nobody_looks_at_previews(server: FakeComfyUI, backend: ComfyUI) -> None:
    render(backend)

    assert server.previews == 0


def test_a_large_preview_does_not_end_the_connection(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.preview = bytes(3 << 20)
    server.own_ids = True  # a new one is asked for none
    told = Told()

    render(backend, told=told)

    assert server.previews == 4
    assert server.sockets_taken == 1
    assert (told.said[-1][1], len(server.submitted)) == ("", 1)


def test_an_end_that_nobody_heard_is_found_in_the_history(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, look_s=3600)
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.deaf = True
    server.drop_sockets()
    hold.released.set()
    server.wait_for_history(1)
    server.deaf = False

    assert len(rendering.outcome().images) == 1
    assert len(server.submitted) == 1
    backend.close()


def test_an_end_that_is_told_to_nobody_is_asked_for(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, look_s=0.2)
    server.mute = True

    assert len(render(backend).images) == 1
    assert len(server.submitted) == 1
    backend.close()


def test_a_connection_that_breaks_does_not_lose_a_running_prompt(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.drop_sockets()
    server.wait_for_socket(2)
    hold.released.set()

    assert len(rendering.outcome().images) == 1
    assert len(server.submitted) == 1
    assert rendering.told.said[-1][0] >= 0.9


@pytest.mark.parametrize("last_word", [True, False])
def test_an_end_is_announced_before_the_history_has_it(
    server: FakeComfyUI, last_word: bool
) -> None:
    backend = ComfyUI(url=server.url, look_s=3600)
    server.lag_s = 0.5
    server.no_last_word = not last_word

    assert len(render(backend).images) == 1
    assert len(server.submitted) == 1
    backend.close()


def test_what_a_restarted_server_forgot_is_submitted_again(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.stop()
    server.hold = None
    server.start()

    rendered = rendering.outcome()
    first, second = (dict(one["prompt"]) for one in server.submitted)
    for graph in (first, second):
        graph["5"]["inputs"].pop("corral")
    assert first == second
    assert len({one["prompt_id"] for one in server.submitted}) == 2
    assert pixel_sha256(rendered.images[0]) == pixel_sha256(render(backend).images[0])


def test_an_uploaded_image_is_brought_again_after_a_restart(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    render(backend, stage=Img2Img(), images=(picture("one", (64, 64)),))
    assert server.inputs
    server.stop()
    assert server.inputs == {}  # it was for that life of the server only
    server.start()

    again = render(backend, stage=Img2Img(), images=(picture("one", (64, 64)),))

    assert len(again.images) == 1


@pytest.mark.parametrize(
    ("breaks", "said", "code"),
    [(True, "forgot the prompt 3 times", "backend_down"), (False, "3 times", "exception")],
)
def test_a_server_that_forgets_everything(
    server: FakeComfyUI, breaks: bool, said: str, code: str
) -> None:
    backend = ComfyUI(url=server.url, look_s=0.2)
    server.forgets = True
    rendering = Rendering(backend)
    rendering.start()
    while rendering.is_alive():
        if breaks:
            server.drop_sockets()
        rendering.join(0.05)

    with pytest.raises(StageFailed, match=said) as failed:
        rendering.outcome()
    assert failed.value.code == code
    assert len(server.submitted) == 3
    backend.close()


def test_what_others_do_there_does_not_put_off_the_question(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, look_s=0.3)
    server.forgets = True
    rendering = Rendering(backend)
    rendering.start()
    while rendering.is_alive():
        server.life.say("status", {"status": {"exec_info": {"queue_remaining": 1}}}, None)
        rendering.join(0.05)

    with pytest.raises(StageFailed, match="3 times"):
        rendering.outcome()
    backend.close()


def test_a_server_that_is_not_there_is_down(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.stop()

    with pytest.raises(StageFailed, match="Start it") as failed:
        render(backend)

    assert failed.value.code == "backend_silent"


def test_a_proxy_with_a_path_and_a_password(server: FakeComfyUI) -> None:
    server.under, server.login = "/comfy", "me:secret"
    entry = ComfyUIEntry(url=f"{server.url}/comfy/", username="me", password="secret")
    backend = open_backend(entry.options())

    rendered = backend.render(Img2Img(), RECORD, (picture("one", (64, 64)),), Told())

    assert len(rendered.images) == 1
    assert "anime" in offer_of(entry.options())[1]
    assert isinstance(backend, ComfyUI)
    backend.close()


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        ({"login": "me:secret"}, "`username`", "backend_silent"),
        ({"under": "/comfy"}, "correct `url`", "backend_silent"),
        ({"deaf": True}, "WebSockets", "stage_missing"),  # it does answer, and would for ever
    ],
)
def test_an_address_that_is_not_the_servers(
    server: FakeComfyUI, backend: ComfyUI, change: dict[str, Any], said: str, code: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)

    with pytest.raises(StageFailed) as failed:
        render(backend)

    assert failed.value.code == code
    assert said in failed.value.message


def test_an_image_that_is_too_large_for_a_proxy(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.most_bytes = 100

    with pytest.raises(StageFailed, match="max-upload-size") as failed:
        render(backend, stage=Upscale(), images=(picture("one", (64, 64)),))

    assert failed.value.code == "stage_missing"


def test_a_server_that_does_not_come_back_is_down(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, patience_s=0.5)
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.stop()

    with pytest.raises(StageFailed) as failed:
        rendering.outcome()
    assert failed.value.code == "backend_down"
    backend.close()


@pytest.mark.parametrize("before", [True, False])
def test_a_server_that_is_busy_is_not_down(server: FakeComfyUI, before: bool) -> None:
    backend = ComfyUI(url=server.url, patience_s=0.1, answer_s=0.1, look_s=0.1)
    hold = held(server)
    if before:
        server.stall(0.6)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)
    if not before:
        server.stall(0.6)
    hold.released.set()

    assert len(rendering.outcome().images) == 1
    backend.close()


def test_a_server_that_hangs_is_down_in_the_end(server: FakeComfyUI) -> None:
    backend = ComfyUI(url=server.url, busy_s=0.3, answer_s=0.1)
    server.stall(2)

    with pytest.raises(StageFailed) as failed:
        render(backend)

    assert failed.value.code == "backend_silent"
    backend.close()


def test_a_submission_without_an_answer_is_not_made_twice(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.loses_answers = True

    assert len(render(backend).images) == 1
    assert len(server.submitted) == 1


def test_the_servers_own_prompt_id_counts(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.own_ids = True

    assert len(render(backend).images) == 1


def test_a_cancel_stops_what_runs(server: FakeComfyUI, backend: ComfyUI) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    rendering.told.stop.set()

    with pytest.raises(job.Cancelled):
        rendering.outcome()
    (entry,) = server.wait_for_history(1)
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"


def test_a_slow_step_is_not_interrupted_all_the_time(server: FakeComfyUI, backend: ComfyUI) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)
    server.step_s = 0.8
    hold.released.set()

    rendering.told.stop.set()

    with pytest.raises(job.Cancelled):
        rendering.outcome()
    assert 1 <= server.interrupts <= 2


def test_a_cancel_takes_back_what_waits_and_nothing_else(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    server.own_ids = True  # an old server: a careless interrupt would hit the other
    hold = held(server)
    other = Rendering(backend, changed(seed=1))
    other.start()
    assert hold.reached.wait(10)
    second = ComfyUI(url=server.url)
    ours = Rendering(second)
    ours.start()
    server.wait_for_pending(1)

    ours.told.stop.set()

    with pytest.raises(job.Cancelled):
        ours.outcome()
    assert server.life.pending == []
    hold.released.set()
    assert len(other.outcome().images) == 1
    second.close()


def test_a_cancel_by_signal_stops_the_server_too(server: FakeComfyUI, backend: ComfyUI) -> None:
    server.step_s = 0.05
    told = Told()

    def signalled() -> None:
        if "step 2" in told.said[-1][1]:
            raise job.Cancelled

    told.on_progress = signalled
    with pytest.raises(job.Cancelled):
        render(backend, changed(steps=100), told=told)

    (entry,) = server.wait_for_history(1)
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"


def test_an_interrupt_of_somebody_else_is_no_failure_of_the_graph(
    server: FakeComfyUI, backend: ComfyUI
) -> None:
    hold = held(server)
    rendering = Rendering(backend)
    rendering.start()
    assert hold.reached.wait(10)

    server.life.interrupt.set()

    with pytest.raises(StageFailed, match="Somebody interrupted it") as failed:
        rendering.outcome()
    assert failed.value.code == "exception"


def test_an_offer_tells_what_there_is(server: FakeComfyUI) -> None:
    server.files["checkpoints"] += ["a/twin.safetensors", "b\\twin.ckpt"]

    options = ComfyUIEntry(url=server.url).options()

    stages, models = offer_of(options)

    assert tuple(models) == ("anime", "sdxl_1.0", "refiner", "a/twin", "b/twin")
    assert stages == ("txt2img", "img2img", "upscale")
    server.packs = True
    assert "adetailer" in offer_of(options)[0]


def test_a_server_that_loads_a_model_is_not_silent_to_its_agent(
    server: FakeComfyUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = partial(ComfyUIServer, answer_s=0.8)
    monkeypatch.setattr("corral.runtime.pipeline.comfyui.offer.ComfyUIServer", impatient)
    options = ComfyUIEntry(url=server.url).options()
    server.stall(1.0)
    assert "anime" in offer_of(options)[1]
    server.stall(5)
    with pytest.raises(StageFailed) as failed:
        offer_of(options)
    assert failed.value.hangs


def test_an_offer_of_nobody_is_a_plain_no(server: FakeComfyUI) -> None:
    server.stop()

    with pytest.raises(StageFailed) as failed:
        offer_of(ComfyUIEntry(url=server.url).options())
    assert failed.value.code == "backend_down"


def test_an_entry_of_the_settings_makes_one(server: FakeComfyUI) -> None:
    entry = ComfyUIEntry(url=server.url)

    backend = open_backend(json.loads(msgspec.json.encode(entry.options())))

    assert backend.render(Txt2Img(), RECORD, (), Told()).images
    assert isinstance(backend, ComfyUI)
    backend.close()


def test_one_thread_reads_and_writes(server: FakeComfyUI) -> None:
    """Behind https two would lose a request now and then: OpenSSL does not allow it."""
    threads = threading.active_count()
    events = Events(server.url, "me", {}, PATIENCE_S)
    events.connect()
    assert threading.active_count() == threads
    assert events.next(PATIENCE_S) is not None
    events.close()
