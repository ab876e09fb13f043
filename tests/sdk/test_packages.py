"""Pickling: what is the user's own travels whole. Zips: the same files are the same bytes."""

from __future__ import annotations

import base64
import functools
import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from corral.core.errors import InvalidJob
from corral.sdk import results
from corral.sdk.functions import remote
from corral.sdk.submit import own_modules, packages

MODULES = {
    "shed/__init__.py": "LOCATION = 'garden'\n",
    "shed/tools.py": """
        import functools
        import threading
        import shed.rakes
        from shed.rakes import Rake

        lock = threading.Lock()
        COUNT = 3

        def twice(function):
            import functools

            @functools.wraps(function)
            def wrapper(*args):
                return function(*args) * 2
            return wrapper

        def plain(x):
            return x + COUNT

        @twice
        def decorated(x):
            return plain(x)

        def through_module(x):
            return shed.rakes.teeth(x) + len(shed.LOCATION)

        def recursive(x):
            return 1 if x == 0 else x * recursive(x - 1)

        def outer(y):
            def inner(x):
                return x + y + COUNT
            return inner

        def in_circles(x):
            return shed.rakes.back(x)

        @functools.cache
        def cached(x):
            return 1 if x == 0 else x * cached(x - 1)

        def through_cached(x):
            return cached(x) + COUNT
    """,
    "shed/rakes.py": """
        import dataclasses
        import shed.tools

        @dataclasses.dataclass
        class Rake:
            teeth: int
            def pull(self, x):
                return self.teeth * x

        def teeth(x):
            return Rake(x).pull(10)

        def back(x):
            return shed.tools.plain(x)

        def make(x):
            return Rake(x)
    """,
}

PROGRAM = """
import base64, json, pickle, sys
for line in sys.stdin:
    function, arguments = (pickle.loads(base64.b64decode(part)) for part in line.split())
    args, kwargs = arguments
    print(json.dumps(function(*args, **kwargs)))
assert "shed" not in sys.modules
"""


@pytest.fixture
def shed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of the user's own that only this process can import."""
    for name, text in MODULES.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "shed"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("shed.tools")


def elsewhere(*calls: tuple[Callable[..., Any], Any]) -> list[Any]:
    """What the calls return in a process that has only what is installed."""
    lines = [
        b" ".join(
            base64.b64encode(part)
            for part in (packages.pickle_function(fn), packages.pickle_arguments((arg,), {}))
        )
        for fn, arg in calls
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM],
        input=b"\n".join(lines),
        capture_output=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kind_of_function_travels(shed: Any) -> None:
    offset = 5
    rake = shed.Rake(4)
    decorated = remote(shed.plain)

    def nested(x: int) -> int:
        return shed.plain(x) + offset + decorated(x)  # type: ignore[no-any-return]

    assert elsewhere(
        (shed.plain, 1),
        (shed.decorated, 1),
        (shed.through_module, 2),
        (shed.recursive, 4),
        (shed.outer(10), 1),
        (shed.in_circles, 1),
        (rake.pull, 3),
        (lambda x: x + offset, 1),
        (nested, 1),
        (remote(shed.plain), 2),
        (lambda other: other.pull(2), rake),
        (lambda functions: functions[0](1), [shed.plain]),
        (os.path.basename, "/a/b"),
    ) == [4, 8, 26, 24, 14, 4, 12, 6, 13, 5, 8, 4, "b"]


def test_cached_functions_travel(shed: Any) -> None:
    @functools.lru_cache(maxsize=2, typed=True)
    def mine(x: int) -> int:
        maxsize, typed = mine.cache_parameters().values()
        return mine(x - 1) * 2 if x else int(str(maxsize)) + bool(typed)

    assert elsewhere(
        (shed.cached, 4),
        (shed.through_cached, 3),
        (functools.partial(shed.cached), 3),
        (lambda function: function(3), shed.cached),
        (mine, 2),
    ) == [24, 9, 6, 6, 12]


def test_own_classes_come_back_as_themselves(shed: Any) -> None:
    data = packages.pickle_function(shed.shed.rakes.make)
    program = "import sys, pickle, cloudpickle; sys.stdout.buffer.write(cloudpickle.dumps("
    program += "pickle.loads(sys.stdin.buffer.read())(7)))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], input=data, capture_output=True, check=True
    )
    pull = shed.Rake.pull
    assert results.value_of(done.stdout) == shed.Rake(7)
    assert shed.Rake.pull is pull


def test_the_registry_of_cloudpickle_is_left_as_it_was(shed: Any) -> None:
    before = cloudpickle.list_registry_pickle_by_value()
    packages.pickle_function(shed.plain)
    assert cloudpickle.list_registry_pickle_by_value() == before


def test_whose_code_it_is(shed: Any) -> None:
    assert own_modules.first_party("shed.tools")
    assert own_modules.first_party("__main__")
    assert own_modules.first_party("tests.sdk.test_packages")
    for installed in ("json", "grpc.aio", "corral.core", "builtins", "_thread", None):
        assert not own_modules.first_party(installed)


def test_installed_beside_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --target`, and PYTHONPATH: by name. What merely lies there too: by value."""
    for name in ("barrow/__init__.py", "hoe.py", "spade.py", "garden-1.dist-info/RECORD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "garden-1.dist-info/RECORD").write_text("barrow/__init__.py,,\nhoe.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("barrow", "hoe", "spade"):
        importlib.import_module(name)
    assert [own_modules.first_party(name) for name in ("barrow", "hoe", "spade")] == [
        False,
        False,
        True,
    ]


def test_simple_arguments_are_plain_pickles() -> None:
    value = ((1, "a", b"b", [2.5, {"c": None}], Path("x")), {"k": {1, 2}})
    assert packages.pickle_arguments(*value) == pickle.dumps(value, 5)


def test_what_cannot_travel_is_said() -> None:
    file = io.FileIO(os.dup(1), "w")
    with file, pytest.raises(InvalidJob, match="The arguments cannot be sent"):
        packages.pickle_arguments((file,), {})
    with pytest.raises(InvalidJob, match="Only functions"):
        packages.pickle_function(3)  # type: ignore[arg-type]


def folder(root: Path) -> Path:
    for name in ("main.py", "pkg/__init__.py", "pkg/b.py", "data.bin", ".git/HEAD", "c.pyc"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for name in ("__pycache__/x.py", ".venv/bin/python", "node_modules/a/b.js"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("")
    return root


def test_folders_are_packed_reproducibly(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "one"), folder(tmp_path / "two")
    os.utime(second / "main.py", (1, 1))
    (first / "loop").symlink_to(first)
    (first / "run.sh").write_text("x")
    (second / "run.sh").write_text("x")
    (first / "run.sh").chmod(0o755)
    (second / "run.sh").chmod(0o755)
    (first / "py312").mkdir()
    (first / "py312" / "pyvenv.cfg").write_text("home = /usr/bin")
    (first / "py312" / "python").write_text("")
    data, entry = packages.pack(first)
    assert (data, entry) == packages.pack(second)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.namelist() == ["data.bin", "main.py", "pkg/__init__.py", "pkg/b.py", "run.sh"]
    assert archive.getinfo("run.sh").external_attr >> 16 == 0o100755


def test_entries(tmp_path: Path) -> None:
    root = folder(tmp_path / "f")
    assert packages.pack(root, "pkg/b.py")[1] == "pkg/b.py"
    assert packages.pack(root, "pkg.b:main")[1] == "pkg.b:main"
    assert packages.pack(root / "main.py")[1] == "main.py"
    for entry, sentence in (
        ("nope.py", "has no nope.py"),
        ("pkg.c:main", "names no function"),
        ("pkg.b:1", "names no function"),
    ):
        with pytest.raises(InvalidJob, match=sentence):
            packages.pack(root, entry)
    (root / "run.sh").write_text("echo")
    with pytest.raises(InvalidJob, match=r"only Python scripts \(\.py\) or folders with main\.py"):
        packages.pack(root / "run.sh")
    with pytest.raises(InvalidJob, match="There is no script or folder"):
        packages.pack(tmp_path / "none")
    with pytest.raises(InvalidJob, match="leave `entry` out"):
        packages.pack(root / "main.py", "main.py")
