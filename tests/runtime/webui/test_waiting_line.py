"""Turns at a server: first come, first served, and jobs of the loaded model before others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral import job
from corral.runtime.pipeline.webui import waiting_line
from corral.runtime.pipeline.webui.backend import WebUI
from corral.runtime.pipeline.webui.turn import Turn
from tests.eventually import PATIENCE_S, eventually
from tests.fakes.webui import FakeWebUI
from tests.runtime.webui.rendering import RECORD, Background, Open, render, sent

URL = "http://gpu:7860"


def turn(folder: Path, model: str | None = "alpha") -> Turn:
    return Turn(URL, str(folder), model)


def loaded(folder: Path, model: str) -> None:
    first = turn(folder)
    assert first.take()
    first.write(model=model)
    first.release()


def served(waiting: list[Turn]) -> list[int]:
    """The order in which they get it, however often the last ones ask first."""
    order: list[int] = []
    while len(order) < len(waiting):
        for place in reversed(range(len(waiting))):
            if place not in order and waiting[place].take():
                order.append(place)
                waiting[place].release()
    return order


def in_line(folder: Path, *models: str | None) -> list[Turn]:
    holder = turn(folder)
    assert holder.take()
    waiting = [turn(folder, model) for model in models]
    # The first one to come finds nobody in the line, and nobody gets in.
    assert not any(one.take() for one in waiting for _ in range(2))
    holder.release()
    return waiting


def test_first_come_first_served(tmp_path: Path) -> None:
    assert served(in_line(tmp_path, *["alpha"] * 5)) == [0, 1, 2, 3, 4]


def test_the_loaded_model_goes_first(tmp_path: Path) -> None:
    loaded(tmp_path, "beta")
    assert served(in_line(tmp_path, "alpha", "beta", None, "gamma", "beta")) == [1, 2, 4, 0, 3]


def test_nobody_is_passed_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(tmp_path, "beta")
    monkeypatch.setattr(waiting_line, "PASSED_S", 0.0)
    assert served(in_line(tmp_path, "alpha", "beta", "gamma", "beta")) == [0, 1, 2, 3]


def test_who_gave_up_or_died_is_waited_for_by_nobody(tmp_path: Path) -> None:
    waiting = in_line(tmp_path, "alpha", "alpha", "alpha")
    waiting[0].release()
    ended = (
        "import sys, time\n"
        "from corral.runtime.pipeline.webui.turn import Turn\n"
        "turn = Turn(*sys.argv[1:])\n"
        "turn.take()\n"
        "print(flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", ended, URL, str(tmp_path), "alpha"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        late = turn(tmp_path)
        assert not late.take()
        one.kill()
    assert served([*waiting[1:], late]) == [0, 1, 2]
    assert [name for name in os.listdir(tmp_path) if "waits" in name] == []


def test_jobs_of_the_loaded_model_render_before_a_change(opened: Open, fake: FakeWebUI) -> None:
    render(opened())
    fake.step_s = 0.05
    running = [Background(opened(), replace(RECORD, steps=30))]
    assert fake.stepped.wait(PATIENCE_S)
    eventually(lambda: len(sent(fake, "txt2img")) == 2, "one renders")
    for model in ("beta", "alpha", "beta", "alpha"):
        running.append(Background(opened(), replace(RECORD, model=model, steps=1)))
        told = running[-1].tell.told
        eventually(lambda told=told: "waiting for another" in str(told), "it waits")  # type: ignore[misc]
    for one in running:
        one.wait()
        assert one.rendered is not None
    titles = [body["override_settings"]["sd_model_checkpoint"] for body in sent(fake, "txt2img")]
    assert [title.split(".")[0] for title in titles] == [
        "alpha", "alpha", "alpha", "alpha", "beta", "beta",
    ]  # fmt: skip


def test_a_cancel_leaves_the_line(webui: WebUI, opened: Open, fake: FakeWebUI) -> None:
    fake.step_s = 0.05
    first = Background(opened(), replace(RECORD, steps=20))
    assert fake.stepped.wait(PATIENCE_S)
    second = Background(webui)
    eventually(lambda: "waiting for another" in str(second.tell.told), "it waits")
    second.tell.cancel.set()
    second.wait()
    assert isinstance(second.error, job.Cancelled)
    third = Background(opened())
    first.wait()
    third.wait()
    assert third.rendered is not None


@pytest.mark.parametrize("odd", ["", "x", "-1-2-3", "²"])
def test_a_file_that_nobody_of_ours_made_is_none_who_waits(tmp_path: Path, odd: str) -> None:
    Path(f"{turn(tmp_path)._path}.waits-{odd}").write_text("")
    assert served(in_line(tmp_path, "alpha", "alpha")) == [0, 1]


def test_a_note_is_whole_also_where_its_writer_is_killed_before_it_cuts_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = turn(tmp_path)
    assert first.take()
    first.write(user={"samples_format": "webp"}, model="a" * 100)
    with monkeypatch.context() as killed:
        killed.setattr(os, "ftruncate", lambda *_: None)
        first.write(model="b")
    assert first.read() == {"user": {"samples_format": "webp"}, "model": "b"}
    first.release()
