"""The kit: what every runner brings into a job's environment, kept apart from what is installed
there. A directory with copies of `corral` and `cloudpickle`, named by the digest of its content.
"""

from __future__ import annotations

import compileall
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import structlog

from corral.agent import manifest
from corral.agent.run_directory import remove_tree

log = structlog.get_logger("corral.agent.kit")

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
    """The kit of the installed packages: found and proven, or made anew."""
    files = [entry for package in PACKAGES for entry in _sources(package)]
    digest = hashlib.sha256()
    contents: list[tuple[Path, bytes]] = []
    for inside, path in files:
        content = path.read_bytes()
        contents.append((inside, content))
        digest.update(f"{inside.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    kit = kits / digest.hexdigest()[:20]
    if _is_sound(kit):
        return kit
    building = kits / f".building-{os.getpid()}"
    _discard(building)
    for inside, content in contents:
        target = building / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    compile_kit(building)
    _discard(kit)
    try:
        manifest.finish(building, kit)
    except OSError:
        # Somebody else finished the same kit first; theirs is as good.
        _discard(building)
        if not manifest.is_whole(kit):
            raise
    return kit


def _is_sound(kit: Path) -> bool:
    """Whether it is as it was made. Bytecode that a build for another Python was about to add goes:
    Python believes its first bytes, whatever became of the rest."""
    if not manifest.is_whole(kit):
        if kit.exists():
            log.warning("kit_not_proven", kit=kit.name)
        return False
    try:
        manifest.drop_unlisted(kit)
    except OSError as error:
        log.warning("kit_not_proven", kit=kit.name, error=str(error))
        return False
    return True


def compile_kit(kit: Path) -> None:
    """Bytecode beside the sources: inside a job the kit is read-only, so no runner could keep its
    own, and each would compile again."""
    compileall.compile_dir(kit, quiet=2)


def vouch(kit: Path) -> None:
    """For the bytecode of one more Python too, which was added after the kit was made."""
    manifest.list_files(kit)


def drop_others(kits: Path, kept: Path) -> None:
    """Remove kits of earlier versions; only called when no runner of theirs is left."""
    for path in kits.iterdir():
        if path != kept:
            _discard(path)


def _discard(path: Path) -> None:
    with suppress(OSError):
        remove_tree(str(path))
