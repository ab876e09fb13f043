"""The devices that a job may open: a list of what programs and GPUs need. Whatever else is in
`/dev` stays out, known to us or not: terminals, consoles, keyboards, microphones, disks, memory.
"""

from __future__ import annotations

import os
import sys

assert sys.platform != "win32"

PLAIN = ("null", "zero", "full", "random", "urandom", "tty")
"""`tty` is the terminal of whoever opens it, and a job has none."""
GPUS = (
    "nvidia*", "nvhost*", "nvmap", "nvgpu", "nvsciipc", "gdrdrv",  # NVIDIA's, on small boards too
    "kfd", "dri/renderD*",  # AMD's and Intel's; `dri/card*` would be the screen
    "dxg",  # of Windows, for WSL
    "accel",
    "infiniband",  # between machines with GPUs
)  # fmt: skip
"""Folders with all that is in them."""


def allowed() -> list[str]:
    """Those that are here now."""
    found = [f"/dev/{name}" for name in PLAIN]
    for pattern in GPUS:
        folder, _, name = f"/dev/{pattern}".rpartition("/")
        try:
            found += [f"{folder}/{one}" for one in os.listdir(folder) if _matches(one, name)]
        except OSError:
            continue
    return found


def _matches(name: str, pattern: str) -> bool:
    """`fnmatch` would load `re`, which every start of a runner then waits for."""
    return name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
