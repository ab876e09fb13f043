"""The diffusers backend: without its extra here, and with it in an environment of its own.

That environment takes two to three minutes to make (torch alone is most of it) and is kept in
`.cache` until its constraints change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from corral.core.pipeline import Record, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.diffusers_backend import Diffusers
from tests.in_torch.telling import Tell

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "tests" / "in_torch" / "constraints.txt"
NEEDED = (
    "accelerate", "diffusers", "msgspec", "peft", "pillow", "pytest", "safetensors", "scipy",
    "torch", "transformers",
)  # fmt: skip
INSTALL_S, RUN_S = 480, 420


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is in this environment")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(StageFailed, match=r"pip install 'corral\[diffusers\]'") as failed:
        Diffusers().render(Txt2Img(), Record(positive="a castle", model="tiny"), (), Tell())
    assert failed.value.code == "stage_missing"


def test_upscaling_needs_no_extra() -> None:
    from PIL import Image

    image = Image.linear_gradient("L").convert("RGB")
    record = Record(positive="a castle", stages=(Upscale(factor=2.0),))
    (made,) = Diffusers().render(record.stages[0], record, (image,), Tell()).images
    assert made.size == (512, 512)


@pytest.fixture(scope="module")
def in_torch() -> Path:
    """An interpreter that has torch and diffusers."""
    python = ROOT / ".cache" / "diffusers-venv" / "bin" / "python"
    ready = python.parents[1] / ".ready"
    wanted = CONSTRAINTS.read_text()
    if ready.exists() and ready.read_text() == wanted:
        return python
    began = time.monotonic()
    ready.unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], INSTALL_S)
    # Plain pip, as in tools/setup: where a machine has registry settings, they are pip's.
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*install, "-c", str(CONSTRAINTS), *NEEDED], INSTALL_S)
    ready.write_text(wanted)
    print(f"made {python.parents[1]} in {time.monotonic() - began:.0f} s")
    return python


@pytest.mark.timeout(INSTALL_S + RUN_S + 60)
def test_the_backend_where_torch_is(in_torch: Path, tmp_path: Path) -> None:
    """Every case of `tests/in_torch/backend_cases.py`; one that fails is shown with its words."""
    report = tmp_path / "report.xml"
    command = [
        str(in_torch), "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "-W", "ignore",
        "-p", "no:cacheprovider", f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'cases'}",
        f"--junitxml={report}", "tests/in_torch/backend_cases.py",
    ]  # fmt: skip
    _run(command, RUN_S)
    (suite,) = ElementTree.parse(report).getroot()
    counts = {name: int(suite.attrib[name]) for name in ("errors", "failures", "skipped")}
    assert counts == {"errors": 0, "failures": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) > 60


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
