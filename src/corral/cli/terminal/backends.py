"""What a worker makes images with, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.contract.views import WorkerView

DIFFUSERS = "diffusers"


def rendering(worker: WorkerView) -> list[str]:
    """A line, and one for each server that does not answer; nothing for sketches alone."""
    from corral.core.images.pipeline import SKETCH

    named = [f"{one.kind} at {one.url}" for one in worker.servers]
    named += [DIFFUSERS] if DIFFUSERS in worker.task_types else []
    if not named:
        return []
    named += [SKETCH] if SKETCH in worker.task_types else []
    count = len(worker.models)
    models = f"{count or 'no'} model{'s' * (count != 1)} known"
    troubles = (f"{worker.name}: {one.trouble}" for one in worker.servers if one.trouble)
    return [f"{worker.name} renders with {', '.join(named)}; {models}.", *troubles]
