"""What a worker is and what it can hold: GPUs, capabilities, and the arithmetic of sharing them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import ceil
from typing import Annotated, Literal

from msgspec import Meta, Struct

from corral.core.job import Needs, Size
from corral.core.text import PLAIN, gpu_words

SLACK = 1e-9
"""Sums of fractions miss by less than this; it decides nothing."""

DESKTOP_GB = 1.0
"""VRAM of others counts from here on: less is a desktop, as on every card with a screen."""
WHOLE_TENTHS = 8
"""A GPU of which others leave this much still counts as a whole one."""

MOST_GPUS, MOST_WORDS = 256, 256
Gigabytes = Annotated[float, Meta(ge=0, le=10_000)]
Word = Annotated[str, Meta(max_length=512)]
Words = Annotated[tuple[Word, ...], Meta(max_length=MOST_WORDS)]
Name = Annotated[str, Meta(max_length=512, pattern=PLAIN)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MOST_WORDS)]
Place = Annotated[str, Meta(max_length=4096)]
Places = Annotated[tuple[Place, ...], Meta(max_length=MOST_WORDS)]
"""At most, of what a worker says: every decision goes through it, and it is not to be trusted."""
MOST_MODELS = 10_000
"""Models that a worker tells of; a folder with more is not meant as one of models."""
NAMES_BYTES = 1 << 20
"""Of all names together that are kept of one worker: everybody's list shows them."""
ModelName = Annotated[str, Meta(max_length=4096)]
ModelNames = Annotated[tuple[ModelName, ...], Meta(max_length=MOST_MODELS)]


class GPU(Struct, frozen=True):
    uuid: Word
    name: Word
    vram_gb: Gigabytes
    vendor: Word = "nvidia"
    tflops: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """About how many trillion 32-bit operations it does in a second; 0: unknown."""
    driver: Word = ""
    """The version of its driver, where that says so."""


@lru_cache(maxsize=1024)
def is_called(name: str, wanted: str) -> bool:
    """Whether a GPU's name has the words that a job asks for, in a row.

    >>> is_called("NVIDIA GeForce RTX 4090", "rtx4090"), is_called("NVIDIA A100-SXM4-80GB", "A10")
    (True, False)
    """
    has, asked = gpu_words(name), gpu_words(wanted)
    return any(has[n : n + len(asked)] == asked for n in range(len(has) - len(asked) + 1))


class DeclaredGPU(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A GPU named in corral.yaml because nothing can detect it here."""

    name: str
    vram_gb: Annotated[float, Meta(gt=0, le=10_000)]
    id: Annotated[str, Meta(pattern="^[A-Za-z0-9._:/-]*$", max_length=100)] = ""
    """As its driver names it, in `CUDA_VISIBLE_DEVICES` say; empty: its place, from 0."""
    tflops: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0


class Reading(Struct, frozen=True, gc=False, omit_defaults=True):
    """What the driver said of a GPU a moment ago."""

    uuid: Word
    free_gb: Gigabytes = 0.0
    ours_gb: Gigabytes = 0.0
    """VRAM of processes that belong to jobs here."""
    others_gb: Gigabytes = 0.0
    temperature_c: Annotated[float, Meta(ge=-1_000, le=10_000)] | None = None
    utilisation: Annotated[float, Meta(ge=0, le=10)] | None = None
    """How much of the last moment it was at work, 0 to 1."""
    lost: bool = False
    """Its driver does not answer for it any more; all of it counts as others'."""


MOST_NAMES = 2_000
"""Of one kind that an image server tells of; where there are more, it tells none."""


class ImageServer(Struct, frozen=True, gc=False, omit_defaults=True):
    kind: Word
    url: Annotated[str, Meta(max_length=2048)]
    trouble: Word = ""
    """Why it does not answer; empty: it does."""
    names: Annotated[
        dict[Word, Annotated[tuple[Word, ...], Meta(max_length=MOST_NAMES)]], Meta(max_length=16)
    ] = {}
    """What it has, by kind: `sampler`, `schedule`, `VAE`, `LoRA`, `upscaler`. Of a kind that is
    missing nobody knows."""


class Withdrawn(Struct, frozen=True, omit_defaults=True):
    """What a worker has only while its image servers answer, and they do not."""

    tasks: Words = ()
    models: ModelNames = ()

    def __bool__(self) -> bool:
        return bool(self.tasks or self.models)


class Model(Struct, frozen=True, gc=False, omit_defaults=True):
    name: ModelName
    size: Size = 0
    sha256: Annotated[str, Meta(max_length=64)] = ""
    """Empty until all of it was read. Of a folder: of the list of its files and their digests."""


class Capabilities(Struct, frozen=True):
    """What a worker says of itself when it registers."""

    cpus: Annotated[float, Meta(ge=0, le=100_000)]
    memory_gb: Annotated[float, Meta(ge=0, le=1_000_000)]
    gpus: Annotated[tuple[GPU, ...], Meta(max_length=MOST_GPUS)] = ()
    labels: Names = ()
    workloads: Words = ()
    """`core.job.Workload`, as far as it accepts them: what it does not name it does not get."""
    platform: Word = "linux"
    python: Word = ""
    enforced: Annotated[dict[Word, Word], Meta(max_length=MOST_WORDS)] = {}
    """What the sandbox holds here, one honest word each: `{"files": "landlock", …}`."""
    ahead: Annotated[int, Meta(ge=0, le=10_000)] = 640
    """How many attempts may wait on the worker itself; 0 where an engine has no local queue."""
    reserved_for: Literal["", "interactive"] = ""
    """The only queue class it takes, if any."""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Among workers that suit a job alike, those with more weight come first."""
    suits: Literal["", "high-memory", "low-latency", "cpu-only"] = ""
    """Its class: the kind of work that its owner wants there first."""
    models_present: ModelNames = ()
    fetches_models: bool = False
    task_types: Words = ()
    """Kinds of tasks that it takes, where a workload has several: its image backends, `render`
    where one of them has real models, and what its settings name."""
    read_paths: Places = ()
    """What every job may read there, beside what belongs to the system."""
    model_paths: Places = ()
    output_path: Place = ""
    """Where the attempts on it write."""
    extends: bool = False
    """It can be told that an attempt may run longer; older workers cannot."""


def kept(names: Iterable[str]) -> int:
    """How many of these names of models are kept: the first ones."""
    count = size = 0
    for name in names:
        size += len(name) if name.isascii() else len(name.encode())
        if size > NAMES_BYTES:
            break
        count += 1
    return count


class Wishes(Struct, frozen=True):
    """What the operator wishes of a worker, whatever it says of itself."""

    name: str = ""
    draining: bool = False
    labels: tuple[str, ...] = ()


class Worker(Struct, frozen=True):
    """A worker as an engine sees it now."""

    id: str
    name: str
    engine: str
    capabilities: Capabilities
    local: bool = False
    """It is the controller's own machine."""
    connected: bool = True
    draining: bool = False
    seen_at: float = 0.0
    left: bool = False
    """It said goodbye and has not been back: nobody misses it."""
    version: str = ""
    """Of the Corral that it runs."""
    incarnation: str = ""
    """One life of its agent's process: another one knows nothing of attempts before it."""
    models_loaded: tuple[str, ...] = ()
    """Names of the models that it has in memory now: a job for one of them starts at once."""
    models: tuple[Model, ...] = ()
    """What is on its disk, with digests."""
    load: float = 0.0
    """How much of its processors attempts hold, 0 to 1."""
    readings: tuple[Reading, ...] = ()
    """Its GPUs when it was last heard of."""
    taken: tuple[tuple[str, float], ...] = ()
    """What others hold of its GPUs as far as it counts, by uuid: see `taken_by_others`."""
    servers: tuple[ImageServer, ...] = ()
    withdrawn: Withdrawn = Withdrawn()

    @property
    def takes_work(self) -> bool:
        return self.connected and not self.draining


def taken_by_others(readings: Iterable[Reading]) -> tuple[tuple[str, float], ...]:
    """What is not ours to give: GPUs and the VRAM that other processes hold there."""
    return tuple((one.uuid, one.others_gb) for one in readings if one.others_gb >= DESKTOP_GB)


class Holding(Struct, frozen=True):
    """What one attempt holds of a worker: processors, memory and tenths of each of its GPUs."""

    cpus: float
    memory_gb: float
    devices: tuple[str, ...] = ()
    tenths: int = 0


def closed_path(needs: Needs, can: Capabilities, *, local: bool) -> str:
    """The first path that a job may not read on a worker; empty: none. The controller's own machine
    is its owner's, who may let jobs read there what they like."""
    if not needs.read or (local and needs.owned) or can.enforced.get("files") == "":
        return ""
    return next((path for path in needs.read if not _below(path, can.read_paths)), "")


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(
        path == folder or path.startswith((f"{folder}/", f"{folder}\\"))
        for folder in (folder.rstrip("/\\") for folder in folders)
    )


def suits(gpu: GPU, needs: Needs, above_vram_gb: float) -> bool:
    """Whether a GPU is one that a job may have at all."""
    if not above_vram_gb < gpu.vram_gb >= needs.vram_gb:
        return False
    return not needs.gpu or is_called(gpu.name, needs.gpu)


class Capacity:
    """A worker's free resources. Scheduler and agent both use it, so they agree on what fits."""

    __slots__ = ("cpus", "gpus", "memory_gb", "others", "tenths")

    def __init__(self, capabilities: Capabilities, taken: Iterable[tuple[str, float]] = ()) -> None:
        self.cpus = capabilities.cpus
        self.memory_gb = capabilities.memory_gb
        self.gpus = capabilities.gpus
        self.tenths = {gpu.uuid: 10 for gpu in capabilities.gpus}
        """What attempts leave of each GPU."""
        self.others = dict(taken) if taken else {}
        """VRAM that processes which are not ours hold, by GPU."""

    def fits(self, needs: Needs, *, above_vram_gb: float = 0.0) -> Holding | None:
        """The holding that `needs` would take now, or None. Shares go to the fullest GPU that
        still has room, so that whole GPUs stay free for whole needs."""
        if needs.cpus > self.cpus + SLACK or needs.memory_gb > self.memory_gb + SLACK:
            return None
        if not needs.wants_gpu:
            return Holding(cpus=needs.cpus, memory_gb=needs.memory_gb)
        per_gpu = 10 if needs.gpus else needs.gpu_tenths
        count = needs.gpus or 1
        if len(self.gpus) == 1 == count and not self.others:  # most machines, most jobs
            gpu = self.gpus[0]
            if self.tenths[gpu.uuid] < per_gpu or not suits(gpu, needs, above_vram_gb):
                return None
            return Holding(needs.cpus, needs.memory_gb, (gpu.uuid,), per_gpu)
        found = [
            (self.tenths[gpu.uuid], gpu.vram_gb, gpu.uuid)
            for gpu in self.gpus
            if self.tenths[gpu.uuid] >= per_gpu
            and suits(gpu, needs, above_vram_gb)
            and (gpu.uuid not in self.others or self._fits_beside(gpu, needs, above_vram_gb))
        ]
        if len(found) < count:
            return None
        found.sort()
        devices = tuple(uuid for _, _, uuid in found[:count])
        return Holding(cpus=needs.cpus, memory_gb=needs.memory_gb, devices=devices, tenths=per_gpu)

    def _fits_beside(self, gpu: GPU, needs: Needs, above_vram_gb: float) -> bool:
        left_gb = gpu.vram_gb - self.others[gpu.uuid]
        if left_gb < needs.vram_gb or left_gb <= above_vram_gb:
            return False
        theirs = ceil(10 * self.others[gpu.uuid] / gpu.vram_gb - SLACK)
        if needs.gpus:
            return 10 - theirs >= WHOLE_TENTHS
        return self.tenths[gpu.uuid] - theirs >= needs.gpu_tenths

    def take(self, holding: Holding) -> None:
        self.cpus -= holding.cpus
        self.memory_gb -= holding.memory_gb
        for uuid in holding.devices:
            if uuid in self.tenths:
                self.tenths[uuid] -= holding.tenths

    def give(self, holding: Holding) -> None:
        self.cpus += holding.cpus
        self.memory_gb += holding.memory_gb
        for uuid in holding.devices:
            if uuid in self.tenths:
                self.tenths[uuid] += holding.tenths


def holding_of(needs: Needs, devices: tuple[str, ...]) -> Holding:
    """The holding of an attempt that said which devices it got."""
    tenths = 10 if needs.gpus else needs.gpu_tenths
    return Holding(cpus=needs.cpus, memory_gb=needs.memory_gb, devices=devices, tenths=tenths)


def stays_behind(needs: Needs, waiting: int, waiting_without_gpu: int) -> bool:
    """Whether an attempt must stay behind those that already wait on the worker, so that the
    first in line gets what it waits for: only work without a GPU passes work that waits for one."""
    return bool(waiting_without_gpu or (waiting and needs.wants_gpu))
