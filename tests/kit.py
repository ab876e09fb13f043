"""A runner's kit that is made once for every home of these tests: making one compiles all of
Corral, which takes longer than most of what is tested."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from corral.agent.environments import manifest


@functools.cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="corral-kit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    manifest.assemble_kit(folder)
    return folder


def give(home: Path) -> None:
    """Before an agent's first start there, which then finds it as after any start before."""
    kits = home / "worker" / "kit"
    if not kits.exists():
        kits.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(_made(), kits)
