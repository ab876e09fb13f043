"""What a server's user has set stays so, whatever becomes of the jobs there."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from corral.agent.image_servers import ServerOffers
from corral.core.images.backends import WebUIEntry
from corral.core.images.pipeline import Record, Upscale
from corral.runtime.pipeline.webui.backend import WebUI
from tests.eventually import PATIENCE_S, eventually
from tests.fakes.webui import FakeWebUI
from tests.runtime.webui.rendering import (
    RECORD,
    Background,
    Open,
    raw,
    refused,
    render,
    sent,
    square,
)

OTHER = replace(RECORD, model="beta", vae="hard.pt", clip_skip=2)
"""It overrides whatever it can."""
RENDER = (
    "import sys, msgspec\n"
    "from corral.core.images.pipeline import Record\n"
    "from corral.runtime.pipeline.webui.backend import WebUI\n"
    "from tests.runtime.webui.rendering import render\n"
    "webui = WebUI(url=sys.argv[1], folder=sys.argv[2])\n"
    "render(webui, msgspec.json.decode(sys.argv[3], type=Record))"
)


@pytest.fixture(params=[{}, {"sd_vae": "soft.safetensors", "randn_source": "GPU"}])
def users(request: pytest.FixtureRequest, fake: FakeWebUI) -> dict[str, object]:
    """All that its user has, of which only these stand in its configuration."""
    fake.config |= request.param
    return fake._options()


def rendering(fake: FakeWebUI, folder: Path, record: Record) -> subprocess.Popen[bytes]:
    """In a process of its own, in the middle of it."""
    said = msgspec.json.encode(record).decode()
    one = subprocess.Popen([sys.executable, "-c", RENDER, fake.url, str(folder), said])
    assert fake.stepped.wait(PATIENCE_S)
    return one


def asked(fake: FakeWebUI) -> int:
    return [path for path, _ in fake.requests].count("options")


def test_overrides_in_force_are_not_taken_for_the_users_choice(
    webui: WebUI, fake: FakeWebUI, users: dict[str, object]
) -> None:
    """Somebody else's request was interrupted and unwinds; it says that its settings are set."""
    fake.unwinds, fake.step_s = threading.Event(), 0.02
    theirs = {"sd_vae": "hard.pt", "randn_source": "NV", "sd_model_checkpoint": "beta"}
    fake.config |= {name: users[name] for name in theirs}  # else they leak by themselves
    body = {"override_settings": theirs, "steps": 100}
    one = threading.Thread(target=raw, args=(fake, "txt2img", body))
    one.start()
    assert fake.stepped.wait(PATIENCE_S)
    raw(fake, "interrupt")
    fake.step_s = 0.0
    running = Background(webui, OTHER)
    before = len(fake.requests)
    eventually(lambda: len(fake.requests) > before + 3, "it looks whether the server is idle")
    assert not sent(fake, "options")
    fake.unwinds.set()
    running.wait()
    one.join()
    assert running.rendered is not None
    assert fake._options() == users


def test_after_a_job(webui: WebUI, fake: FakeWebUI, users: dict[str, object]) -> None:
    for record in (RECORD, OTHER, RECORD):
        render(webui, record)
        assert fake._options() == users


def test_after_a_failure(webui: WebUI, fake: FakeWebUI, users: dict[str, object]) -> None:
    fake.broken = "something of an extension"
    refused(webui, OTHER)
    assert fake._options() == users


def test_after_a_cancel(webui: WebUI, fake: FakeWebUI, users: dict[str, object]) -> None:
    fake.step_s = 0.05
    running = Background(webui, replace(OTHER, steps=1000))
    assert fake.stepped.wait(PATIENCE_S)
    running.tell.cancel.set()
    running.wait()
    eventually(lambda: fake._state["job_count"] == 0, "it has noticed")
    eventually(lambda: fake._options() == users, "all is as it was")


def test_after_a_process_that_was_killed(
    webui: WebUI, fake: FakeWebUI, users: dict[str, object], tmp_path: Path
) -> None:
    fake.step_s = 0.05
    one = rendering(fake, tmp_path, replace(OTHER, steps=40))
    one.kill()
    one.wait()
    fake.step_s = 0.0
    render(webui)
    assert fake._options() == users


async def test_after_a_process_that_was_killed_where_no_other_job_comes(
    fake: FakeWebUI, users: dict[str, object], tmp_path: Path
) -> None:
    fake.step_s = 0.05
    one = rendering(fake, tmp_path, replace(OTHER, steps=1000))
    entry = WebUIEntry(url=fake.url)
    offers = ServerOffers([entry], lambda: None, print, print, turns=str(tmp_path))
    await offers._look()
    assert fake.interrupts == 0, "somebody works there"
    one.kill()
    one.wait()
    await offers._look()
    eventually(lambda: fake._state["job_count"] == 0, "it was interrupted")
    await offers._look()
    assert fake._options() == users


def test_after_a_server_that_died(webui: WebUI, fake: FakeWebUI, users: dict[str, object]) -> None:
    kept = dict(fake.config)
    fake.step_s, fake.die_at = 0.01, 2
    refused(webui, OTHER)
    fake.config = kept  # what it reads when it starts
    fake.restart()
    render(webui)
    assert fake._options() == users


@pytest.mark.parametrize("forge", [False, True])
def test_files_of_the_users_format(webui: WebUI, fake: FakeWebUI, forge: bool) -> None:
    fake.forge = forge
    fake.config["samples_format"] = "webp"
    users = fake._options()
    for _ in range(2):
        assert render(webui).images
        assert render(webui, RECORD, Upscale(factor=2.0), square()).images
        assert fake._options() == users


def test_what_its_user_chose_meanwhile_is_kept(webui: WebUI, fake: FakeWebUI) -> None:
    fake.step_s = 0.05
    running = Background(webui, replace(OTHER, steps=10))
    assert fake.stepped.wait(PATIENCE_S)
    raw(fake, "options", {"emphasis": "No norm"})
    running.wait()
    assert fake._options()["emphasis"] == "No norm"


def test_a_job_behind_another_asks_nothing_of_it(opened: Open, fake: FakeWebUI) -> None:
    first, second = opened(), opened()
    render(first)
    render(second)
    before = asked(fake)
    for webui in (first, second, first):
        render(webui, OTHER)
    assert asked(fake) == before
    raw(fake, "txt2img", {"steps": 1})  # somebody else's; who knows what came between
    render(first)
    assert asked(fake) > before
