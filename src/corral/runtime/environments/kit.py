"""The kit of every runner: copies of `corral` and `cloudpickle`, apart from a job's packages."""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("corral", "cloudpickle")
RUNNER = Path("corral", "runtime", "runner.py")
LEFT_OUT = frozenset({
    "agent", "api", "cli", "controller", "doctor", "engines", "pipelines", "scheduler", "server",
    "simulate",
})  # fmt: skip
"""What no job imports of Corral: the very first start waits for every file of a kit."""
COMPILED = ("cloudpickle", "corral/__init__.py", "corral/core", "corral/job.py", "corral/runtime")


def sources(package: str) -> Iterator[tuple[Path, Path]]:
    """Each source file of a package: its path inside the kit, and where it is now."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"The package {package} is not installed; install Corral again.")
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if package != "corral" or inside.parts[0] not in LEFT_OUT:
            yield Path(package) / inside, path


def contents() -> tuple[str, list[tuple[Path, bytes]]]:
    """What the kit of the installed packages holds, and its name."""
    digest = hashlib.sha256()
    found: list[tuple[Path, bytes]] = []
    for inside, path in (entry for package in PACKAGES for entry in sources(package)):
        content = path.read_bytes()
        found.append((inside, content))
        digest.update(f"{inside.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:20], found


def write(found: list[tuple[Path, bytes]], folder: Path) -> None:
    for inside, content in found:
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    # Bytecode beside the sources: inside a job the kit is read-only, so no runner could keep its
    # own, and each would compile again.
    for path in compiled(folder):
        compile_one = compileall.compile_dir if path.is_dir() else compileall.compile_file
        compile_one(path, quiet=2)


def compiled(kit: Path) -> list[Path]:
    """What a runner loads. A job that imports the SDK too compiles that for itself."""
    return [kit / name for name in COMPILED]


def kept_in(kits: str) -> str:
    """Found there, or made."""
    name, found = contents()
    kit = Path(kits) / name
    if not kit.exists():
        building = Path(kits) / f".building-{os.getpid()}"
        try:
            write(found, building)
            building.rename(kit)
        except OSError:
            if not kit.exists():  # or somebody else was first; theirs is as good
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return str(kit)
