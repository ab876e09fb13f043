"""Figures of the source tree, before and after: `python tools/figures.py [TREE …]`.

Each TREE is a checkout (by default this one); several are printed side by side. Bars are those of
docs and style: a folder of at most 15 modules, a module of at most 400 lines, a function of at
most 60. Generated code does not count.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

GENERATED = "_pb2.py"
MAX_MODULES, MAX_LINES, MAX_FUNCTION = 15, 400, 60

# Put before everything else in a copy of `corral/__init__.py`: every process imports that, the
# job's own from its kit too. A confined process cannot write where we read, so it keeps what it
# saw, and the function that it runs hands that over.
TRACE = """
def _trace():
    import os, sys, threading, time
    kept = sys._corral_calls = []
    try:
        file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        file = None
    def called(frame, event, _):
        if event == "call":
            name = frame.f_code.co_filename.replace(os.sep, "/").rpartition("/corral/")
            if name[1] and name[2] != "__init__.py":
                if file is None:
                    kept.append((time.monotonic_ns(), name[2]))
                else:
                    os.write(file, f"{{time.monotonic_ns()}} {{name[2]}}\\n".encode())
    threading.setprofile(called)
    sys.setprofile(called)
_trace()
"""

CALL = """
import sys, time
from corral import Client

def seen():
    import sys
    return getattr(sys, "_corral_calls", [])

with Client() as client:
    for _ in range(10):
        client.run(int)
    for _ in range(10):
        began = time.monotonic_ns()
        client.run(int)
        print("window", began, time.monotonic_ns())
        time.sleep(0.2)
    calls = client.run(seen)
for when, name in calls:
    print("call", when, name)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path(__file__).parent.parent])
    parser.add_argument("--names", action="store_true", help="also name what is over a bar")
    parser.add_argument("--no-hops", action="store_true", help="run nothing")
    given = parser.parse_args()
    columns = [_figures(tree.resolve(), hops=not given.no_hops) for tree in given.trees]
    wide = max(map(len, columns[0]))
    for figure in columns[0]:
        values = "  ".join(f"{len_or(column[figure])!s:>10}" for column in columns)
        print(f"{figure:<{wide}}  {values}")
    if given.names:
        for tree, column in zip(given.trees, columns, strict=True):
            for figure, value in column.items():
                for name in value if isinstance(value, list) else ():
                    print(f"{tree}: {figure}: {name}")


def len_or(value: int | str | list[str]) -> int | str:
    return len(value) if isinstance(value, list) else value


def _figures(tree: Path, *, hops: bool) -> dict[str, int | str | list[str]]:
    source = tree / "src" / "corral"
    modules = [path for path in sorted(source.rglob("*.py")) if not path.name.endswith(GENERATED)]
    texts = {path.relative_to(source).as_posix(): path.read_text("utf-8") for path in modules}
    parsed = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    folders = Counter(str(Path(name).parent) for name in texts)
    words = re.findall(r"^\| (\*\*.*?) \|", (tree / "GLOSSARY.md").read_text("utf-8"), re.MULTILINE)
    return {
        "lines in src": sum(lines.values()),
        "modules": len(modules),
        "most modules in a folder (≤ 15)": max(folders.values()),
        "folders over 15 modules (0)": [
            f"{name}: {n}" for name, n in folders.most_common() if n > MAX_MODULES
        ],
        "modules over 400 lines (0)": [
            f"{name}: {n}" for name, n in lines.items() if n > MAX_LINES
        ],
        "functions over 60 lines (0)": [
            f"{name}: {function}" for name in parsed for function in _long(parsed[name])
        ],
        "class names that repeat": _repeated(parsed),
        "imports across api and sdk (0)": [
            f"{name}: {imported}"
            for name in parsed
            for imported in _imports(parsed[name])
            if _crosses(name, imported)
        ],
        "settings": _settings(tree),
        "words in the glossary": sum(one.count("**") // 2 for one in words),
        "hops from Client.run to the value": _hops(tree) if hops else "",
    }


def _long(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{node.name}: {length}"


def _repeated(parsed: dict[str, ast.Module]) -> list[str]:
    """Public names of classes that more than one module has; inner classes are their module's."""
    places: dict[str, list[str]] = {}
    for name, tree in parsed.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _crosses(module: str, imported: str) -> bool:
    return any(
        module.startswith(f"{one}/") and f"{imported}.".startswith(f"corral.{other}.")
        for one, other in (("api", "sdk"), ("sdk", "api"))
    )


def _python(tree: Path) -> str:
    own = tree / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _settings(tree: Path) -> int:
    program = "from corral.settings import keys; print(len(list(keys())))"
    beside = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [_python(tree), "-c", program]
    return int(subprocess.run(command, env=beside, capture_output=True, check=True).stdout)


def _hops(tree: Path) -> list[str]:
    """Modules that one call of a small function went through, in all processes together: a real
    controller with its worker runs a copy of the tree that notes every call."""
    with tempfile.TemporaryDirectory(prefix="corral-hops-") as name:
        folder = Path(name)
        shutil.copytree(tree / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        first, noted = folder / "src/corral/__init__.py", folder / "calls"
        text = first.read_text("utf-8")
        after = text.index("from __future__ import annotations\n") + len(
            "from __future__ import annotations\n"
        )
        first.write_text(text[:after] + TRACE.format(file=str(noted)) + text[after:], "utf-8")
        beside = {
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "CORRAL_HOME": str(folder / "home"),
        }
        python = _python(tree)
        up = [python, "-m", "corral.cli.main", "up", "--port", "0", "--grpc-port", "0"]
        with (folder / "log").open("wb") as log:
            controller = subprocess.Popen(up, env=beside, stdout=log, stderr=log)
        try:
            while not (folder / "home" / "controller.json").exists():
                if controller.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.05)
            program = folder / "call.py"
            program.write_text(CALL)
            done = subprocess.run([python, program], env=beside, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
        finally:
            controller.send_signal(signal.SIGINT)
            controller.wait(60)
        windows: list[tuple[int, int]] = []
        calls: list[tuple[int, str]] = []
        for what, one, other in (line.split() for line in done.stdout.splitlines()):
            if what == "window":
                windows.append((int(one), int(other)))
            else:
                calls.append((int(one), other))
        for line in noted.read_text().splitlines():
            when, _, module = line.partition(" ")
            calls.append((int(when), module))
        # What happens beside a call now and then is in some windows; what it needs is in each.
        each = ({name for when, name in calls if a <= when <= b} for a, b in windows)
        return sorted(set.intersection(*each))


if __name__ == "__main__":
    main()
