"""A function's own modules: laid out once in a process, found by all that it starts."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

from tests.runtime.harness import Controller, Frame, Runner, zipped

FILES = {
    "shed/__init__.py": "CALLS = []\n",
    "shed/tools.py": """
import os, subprocess, sys
from . import CALLS

def count(x):
    CALLS.append(x)
    return len(CALLS)

def in_child(x):
    code = "import shed.tools; print(shed.tools.count(1))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

def lazily(x):
    from shed import left_out

def spoil(x):
    sys.path.clear()
    os.environ.pop("PYTHONPATH", None)
""",
    "shed/broken.py": "raise ValueError('not today')\n",
    "shed/lacking.py": "import no_such_module_here\n",
}


def started(runner: Runner, name: str, code: bytes, kept: str = "", module: str = "tools") -> Frame:
    """What became of a function that a pickle names."""
    work: dict[str, Any] = {
        "type": "function",
        "function": runner.blob(f"cshed.{module}\n{name}\n.".encode()),
        "arguments": runner.blob(pickle.dumps(((1,), {}))),
        "code": {"sha256": hashlib.sha256(code).hexdigest(), "size": len(code)},
    }
    more: dict[str, Any] = {"code": kept} if kept else {}
    runner.start_work(work, folder=runner.folder / "run", **more)
    return runner.end()


def test_it_is_fetched_once_and_stays(runner: Runner, controller: Controller) -> None:
    code = zipped(FILES)
    controller.packages[hashlib.sha256(code).hexdigest()] = code
    assert [runner.load(started(runner, "count", code)) for _ in range(3)] == [1, 2, 3]
    assert len(controller.requests) == 1
    assert runner.load(started(runner, "in_child", code)) == "1\n"
    assert started(runner, "spoil", code)["frame"] == "result"
    assert runner.load(started(runner, "in_child", code)) == "1\n"
    assert runner.load(started(runner, "count", code)) == 4


def test_a_zip_that_the_worker_keeps_is_not_fetched(runner: Runner, controller: Controller) -> None:
    code = zipped(FILES)
    (runner.folder / "kept").write_bytes(code)
    kept = str(runner.folder / "kept")
    assert runner.load(started(runner, "count", code, kept)) == 1
    assert controller.requests == []


def test_what_a_module_raises_is_the_failure(runner: Runner, tmp_path: Path) -> None:
    code = zipped(FILES)
    (runner.folder / "kept").write_bytes(code)
    kept = str(runner.folder / "kept")
    failure = started(runner, "f", code, kept, module="broken")["failure"]
    assert (failure["code"], failure["message"]) == ("exception", "not today")
    assert "shed/broken.py" in failure["traceback"]
    failure = started(runner, "f", code, kept, module="lacking")["failure"]
    assert "no_such_module_here to requirements=" in failure["message"]
    assert "code=() sends the function without its module" in failure["message"]
    failure = started(runner, "f", code, kept, module="nowhere")["failure"]
    assert "needs the module 'shed.nowhere'" in failure["message"]
    assert "Your shed went along without it: look into .gitignore" in failure["message"]
    failure = started(runner, "lazily", code, kept)["failure"]
    assert "Your shed went along without it" in failure["message"]
