"""What renders a stage: one small interface in front of every image server, model and drawing.

A backend adds nothing of its own to a record: what the record does not say, it sets to a fixed
value. It is made once per runner with the settings of its entry in `worker.backends`, as keyword
arguments, and lives through many jobs; one stage runs at a time. Other runners of the machine have
backends of their own: whoever can serve only one request at a time takes turns with them.

What a runner starts ends with it. So a server's `restart` command is not the backend's to run: the
agent does it, after a stage failed with `backend_down`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from msgspec import Struct
from PIL.Image import Image

from corral import job
from corral.core.images.pipeline import Record, Stage

LISTED = 8
"""Names of what a server has, where something else was asked for."""


class StageFailed(Exception):
    """Why a stage has no image. The code decides what happens next (`core.failures`):

    - `out_of_memory`: again, same seed, on a bigger GPU
    - `model_missing`: another worker may have the model, VAE, LoRA or upscaler that it names
    - `stage_missing`: another worker may have what the stage needs (ADetailer, a node)
    - `backend_mismatch`: the server says that it rendered something else than it was asked for
    - `backend_down`: it died under the job, or by its own fault: again, as after a lost worker
    - `backend_silent`: no answer, and nothing was begun there: the job waits, and it costs nothing
    - `bad_job`: it would fail the same way everywhere
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hangs = False
        """Of a server: it is there, and takes its time."""


def unless_begun(failed: StageFailed, begun: bool) -> StageFailed:
    """What a silent server means to a job that it has not begun."""
    if failed.code != "backend_down" or begun:
        return failed
    return StageFailed("backend_silent", failed.message)


class Tell(Protocol):
    """The way back, while a stage runs. Only the thread that called `render` may use it."""

    def progress(self, fraction: float, message: str = "") -> None:
        """How much of this stage is done, 0 to 1; the message is like `step 3 of 20`. Cheap
        enough for every step; whoever calls it too often is thinned out."""

    def cancelled(self) -> bool:
        """Whether somebody asked for the end. Look at least twice a second, stop the server, then
        raise `corral.job.Cancelled`: the whole way may take 2 s. It may also be raised by a signal
        wherever the code stands, as long as nobody has asked here."""


def stop_if_cancelled(tell: Tell) -> None:
    if tell.cancelled():
        raise job.Cancelled("The job was cancelled.")


class Rendered(Struct):
    images: list[Image]
    """In the order of their seeds; what a server adds (a grid, a mask) is left out."""
    seconds: float
    """The backend's own: a server's time for the request, and nothing of ours around it."""
    seeds: list[int] = []
    """One per image where the backend says so; empty: seed, seed + 1, …"""
    info: dict[str, Any] = {}
    """For the replay card, JSON values only: `models` (name to hash), `versions` (software to
    version), `driver`, and what else the server says of itself."""
    warnings: list[str] = []
    loaded: bool = False
    """A model was loaded for it; such switches are counted."""


class Backend(Protocol):
    name: str
    """Its kind: `sketch`, `webui`, `comfyui` or `diffusers`."""

    def render(self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell) -> Rendered:
        """One stage. `images` are what the stage before it made, or the job's input images: empty
        for txt2img, one per image of the batch for the others, which give as many back. Raises
        `StageFailed`, or `corral.job.Cancelled` when it was asked to stop. A server of which later
        stages want something it does not have refuses the first one (`later_than`)."""


def later_than(stage: Stage, record: Record) -> Sequence[Stage]:
    """Those of a chain that follow. What they name is looked up before the first one renders: a
    slip in the last one would else be found behind all the work."""
    if stage not in record.stages:
        return ()
    return record.stages[record.stages.index(stage) + 1 :]


def seed_of(record: Record, place: int) -> int:
    """That of one image of its batch."""
    return (record.seed + place) % 2**32


BLOCK = 8
"""Pixels; sides of images that servers make are whole numbers of blocks."""


def times(side: int, factor: float, multiple_of: int = BLOCK) -> int:
    """A side so many times as long, cut the same way everywhere: as WebUI does it, which asks
    nobody.

    >>> times(100, 1.5), times(512, 2.0)
    (144, 1024)
    """
    return max(int(side * factor) // multiple_of, 1) * multiple_of


def excerpt(said: str, most: int) -> str:
    """A server's own words, which may be lists without end; no word of them is cut.

    >>> excerpt("not in [alpha, beta, gamma]", 22)
    'not in [alpha, beta …'
    """
    if len(said) <= most:
        return said
    whole, _, rest = said[:most].rpartition(" ")
    return f"{(whole or rest).rstrip(',;')} …"


def listed(names: Sequence[str], wanted: str = "") -> str:
    """The first of them, those like `wanted` before all others, each whole.

    >>> listed(["Lanczos", "Nearest"], "nearset")
    'Nearest, Lanczos'
    """
    by_word = {name.lower(): name for name in reversed(names)}
    near = [by_word[one] for one in get_close_matches(wanted.lower()[:100], by_word, 3)]
    some = list(dict.fromkeys([*near, *names]))
    more = f" and {len(some) - LISTED} more" if len(some) > LISTED else ""
    return f"{', '.join(some[:LISTED])}{more}" or "none"


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""Words of every kind of program whose memory, or whose GPU's, is full."""
AUTOMATIC = {
    "dpm2": "karras",
    "dpm2a": "karras",
    "dpmpp2sa": "karras",
    "dpmppsde": "karras",
    "dpmpp2m": "karras",
    "dpmpp2msde": "exponential",
    "dpmpp2msdeheun": "exponential",
    "dpmpp3msde": "exponential",
}
"""What the schedule `Automatic` means for a sampler in WebUI, since 1.9; `normal` for all others. A
record that names none is rendered alike by every backend."""


def key(name: str) -> str:
    """The same for all spellings of a name: `DPM++ 2M`, `dpmpp_2m`."""
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("++", "pp"))


def automatic(sampler: str) -> str:
    return AUTOMATIC.get(key(sampler).replace("ancestral", "a"), "normal")
