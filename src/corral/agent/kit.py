"""The kit: what every runner brings into a job's environment, kept apart from what is installed
there. A directory with copies of `corral` and `cloudpickle`, named by the digest of its content.
"""

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


def _sources(package: str) -> Iterator[tuple[Path, Path]]:
    """Each source file of a package: its path inside the kit, and where it is now."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"The package {package} is not installed; install Corral again.")
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        yield Path(package) / path.relative_to(root), path


def assemble(kits: Path) -> Path:
    """The kit of the installed packages: found, or made and moved into place when complete."""
    files = [entry for package in PACKAGES for entry in _sources(package)]
    digest = hashlib.sha256()
    contents: list[tuple[Path, bytes]] = []
    for inside, path in files:
        content = path.read_bytes()
        contents.append((inside, content))
        digest.update(f"{inside.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    kit = kits / digest.hexdigest()[:20]
    if kit.is_dir():
        return kit
    building = kits / f".building-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    for inside, content in contents:
        target = building / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    compile_kit(building)
    try:
        building.rename(kit)
    except OSError:
        # Somebody else finished the same kit first; theirs is as good.
        shutil.rmtree(building, ignore_errors=True)
        if not kit.is_dir():
            raise
    return kit


def compile_kit(kit: Path) -> None:
    """Bytecode beside the sources: inside a job the kit is read-only, so no runner could keep its
    own, and each would compile again."""
    compileall.compile_dir(kit, quiet=2)


def drop_others(kits: Path, kept: Path) -> None:
    """Remove kits of earlier versions; only called when no runner of theirs is left."""
    for path in kits.iterdir():
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)
