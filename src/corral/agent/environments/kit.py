"""The kit of this worker: found and proven, or made anew (see `runtime.environments.kit`)."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from corral.agent.environments import manifest
from corral.runtime.environments.kit import RUNNER as RUNNER
from corral.runtime.environments.kit import contents, write

log = structlog.get_logger("corral.agent.environments.kit")


def assemble(kits: Path) -> Path:
    """The kit of the installed packages: found and proven, or made anew."""
    name, found = contents()
    kit = kits / name
    if _is_sound(kit):
        return kit
    building = kits / f".building-{os.getpid()}"
    manifest.discard(building)
    write(found, building)
    manifest.discard(kit)
    try:
        manifest.finish(building, kit)
    except OSError:
        # Somebody else finished the same kit first; theirs is as good.
        manifest.discard(building)
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


def drop_others(kits: Path, kept: Path) -> None:
    """Remove kits of earlier versions; only called when no runner of theirs is left."""
    for path in kits.iterdir():
        if path != kept:
            manifest.discard(path)
