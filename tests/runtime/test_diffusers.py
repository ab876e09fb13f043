"""The diffusers backend: without its extra here, and with it in an environment of its own.

That environment takes two to three minutes to make (torch alone is most of it) and is kept in
`.cache` until its constraints change.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from PIL import Image

from corral.agent.environments.builder import own_packages
from corral.core.images.pipeline import Img2Img, Record, Txt2Img, Upscale
from corral.runtime.order import Renderer
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.diffusers.backend import Diffusers
from tests.in_torch.telling import Tell
from tests.runtime.conftest import StartRunner
from tests.runtime.harness import Controller

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
CONSTRAINTS = ROOT / "tests" / "in_torch" / "constraints.txt"
NEEDED = (
    "accelerate", "diffusers", "msgspec", "peft", "pillow", "pytest", "safetensors", "scipy",
    "torch", "transformers",
)  # fmt: skip
INSTALL_S, RUN_S = 480, 420
PATIENCE_S = 60.0
"""Importing torch takes seconds."""
CASTLE = Record(
    positive="a castle",
    model="tiny",
    width=64,
    height=64,
    steps=2,
    seed=7,
    stages=(Txt2Img(), Img2Img(denoise=0.5), Upscale(factor=2.0)),
)


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is in this environment")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(StageFailed, match=r"pip install 'corral\[diffusers\]'") as failed:
        Diffusers().render(Txt2Img(), Record(positive="a castle", model="tiny"), (), Tell())
    assert failed.value.code == "stage_missing"


def test_upscaling_needs_no_extra() -> None:
    image = Image.linear_gradient("L").convert("RGB")
    record = Record(positive="a castle", stages=(Upscale(factor=2.0),))
    (made,) = Diffusers().render(record.stages[0], record, (image,), Tell()).images
    assert made.size == (512, 512)


@pytest.fixture(scope="module")
def in_torch() -> Path:
    """An interpreter that has torch and diffusers. One process makes it, the others wait."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "diffusers-venv.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = _made()
    return python


def _made() -> Path:
    python = CACHE / "diffusers-venv" / "bin" / "python"
    ready = python.parents[1] / ".ready"
    wanted = f"{sys.version}\n{CONSTRAINTS.read_text()}"
    if ready.exists() and ready.read_text() == wanted:
        return python
    began = time.monotonic()
    _run([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], INSTALL_S)
    # Plain pip, as in tools/setup: where a machine has registry settings, they are pip's.
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*install, "-c", str(CONSTRAINTS), *NEEDED], INSTALL_S)
    ready.write_text(wanted)
    print(f"made {python.parents[1].name} in {time.monotonic() - began:.0f} s")
    return python


@pytest.mark.long
@pytest.mark.timeout(INSTALL_S + RUN_S + 60)
def test_the_backend_where_torch_is(in_torch: Path, tmp_path: Path) -> None:
    """Every case in `tests/in_torch`; one that fails is shown with its words."""
    report = tmp_path / "report.xml"
    command = [
        str(in_torch), "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "-W", "ignore",
        "-p", "no:cacheprovider", "-p", "tests.in_torch.warm", "-o", "python_files=*_cases.py",
        f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'cases'}", f"--junitxml={report}",
        "tests/in_torch",
    ]  # fmt: skip
    _run(command, RUN_S)
    (suite,) = ElementTree.parse(report).getroot()
    counts = {name: int(suite.attrib[name]) for name in ("errors", "failures", "skipped")}
    assert counts == {"errors": 0, "failures": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) > 60


@pytest.mark.long
@pytest.mark.timeout(INSTALL_S + 240)
def test_a_warm_runner_keeps_the_model(
    in_torch: Path, tmp_path: Path, start_runner: StartRunner, controller: Controller
) -> None:
    """As an agent runs it: a confined process that stays, its model loaded once. A cancel ends
    it with the attempt, as any runner."""
    models = tmp_path / "models"
    _run([str(in_torch), "-m", "tests.in_torch.making", str(models / "tiny")], RUN_S)
    (packages,) = in_torch.parents[1].glob("lib/python*/site-packages")
    runner = start_runner(
        packages=[*own_packages(), str(packages)],
        read_paths=[sys.prefix, sys.base_prefix, str(in_torch.parents[1]), str(models)],
        environ={"CORRAL_MODEL_PATHS": str(models), "OMP_NUM_THREADS": "1"},
    )

    def begin(record: Record) -> None:
        runner.start_work(
            {"type": "pipeline", "record": msgspec.to_builtins(record)},
            renderer=Renderer(worker="here", driver="", backends=[{"type": "diffusers"}]),
        )

    def outcome() -> dict[str, Any]:
        frame = runner.end(PATIENCE_S)
        assert frame["frame"] == "result", frame
        found: dict[str, Any] = json.loads(base64.b64decode(frame["result"]["data"]))
        return found

    begin(CASTLE)
    first = outcome()
    begin(CASTLE)
    again = outcome()
    assert [one["loaded"] for one in (*first["stages"], *again["stages"])] == [
        *(True, False, False),
        *(False, False, False),
    ]
    assert first["images"][0]["pixel_sha256"] == again["images"][0]["pixel_sha256"]
    assert first["images"][0]["size"] == [128, 128]
    card = json.loads(controller.artifacts["job-1-000.json"])
    assert card["backend"] == "diffusers"
    assert {"torch", "diffusers", "transformers"} <= card["software"].keys()
    assert len(card["models"]["tiny"]) == 64

    begin(msgspec.structs.replace(CASTLE, steps=1000, stages=(Txt2Img(),)))
    while "step " not in runner.until("progress", patience_s=PATIENCE_S)["message"]:
        pass
    runner.cancel()
    assert runner.end(PATIENCE_S)["failure"]["code"] == "cancelled"
    assert runner.gone() == 0


def test_a_gpu_in_error_ends_the_process(tmp_path: Path, start_runner: StartRunner) -> None:
    """Whatever a process asks of its GPU after such an error fails. Libraries as thin as paper
    stand for torch and diffusers: no test has a card to break."""
    libraries, models = tmp_path / "libraries", tmp_path / "models"
    for name in ("torch", "transformers", "diffusers"):
        (libraries / f"{name}-1.dist-info").mkdir(parents=True)
        (libraries / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        shutil.copy(ROOT / "tests" / "in_torch" / "broken_gpu.py", libraries / f"{name}.py")
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "model_index.json").write_text("{}")
    runner = start_runner(
        packages=[str(libraries), *own_packages()],
        read_paths=[sys.prefix, sys.base_prefix, str(libraries), str(models)],
        environ={"CORRAL_MODEL_PATHS": str(models)},
    )
    runner.start_work(
        {"type": "pipeline", "record": msgspec.to_builtins(CASTLE)},
        renderer=Renderer(worker="here", driver="", backends=[{"type": "diffusers"}]),
    )
    frame = runner.end(PATIENCE_S)
    assert frame["failure"]["code"] == "backend_down"
    assert "device-side assert" in frame["failure"]["message"]
    assert frame["retire"]
    assert runner.gone() == 0


def _run(command: list[str], timeout_s: float) -> None:
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("CORRAL_")}
    environ = {
        **inherited,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "OMP_NUM_THREADS": "1",  # so small a model is slower on several
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
