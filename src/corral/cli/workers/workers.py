"""`corral workers`: each worker, what it has and how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home

if TYPE_CHECKING:
    from corral.contract.views import GpuView, WorkerView

DIFFUSERS = "diffusers"


def workers(as_json: AsJson = False) -> None:
    """Each worker: what it has, what runs there, and what its sandbox enforces."""
    found = client_of_this_home().workers()
    if as_json:
        output.show_json(found)
        return
    if not found:
        output.say("No workers yet. `corral up` starts one on this machine.")
        return
    columns = ("WORKER", "STATE", "ENGINE", "CPUS", "MEMORY", "GPUS", "JOBS", "LABELS", "ENFORCED")
    rows = [_worker_row(one) for one in found]
    output.show_table(columns, rows, spare=("ENFORCED", "ENGINE", "LABELS"))
    if output.table_width(zip(columns, *rows, strict=True)) > output.terminal_width():
        output.show()
        for row in rows:
            output.show(f"{row[0]} enforces {row[-1]}")
    told = [line for one in found if one.connected for line in _rendering(one)]
    if told:
        output.show("\n" + "\n".join(told))


def _gpu(gpu: GpuView) -> str:
    if gpu.lost:
        return f"{gpu.name} {gpu.vram_gb:g} GB, lost by its driver"
    told = f"{gpu.name} {gpu.vram_gb:g} GB, {gpu.free * 100:.0f} % free"
    if gpu.others_gb:
        told += f", {gpu.others_gb:g} GB used by others"
    if gpu.temperature_c is not None:
        told += f", {gpu.temperature_c:.0f} °C"
    if gpu.utilisation is not None:
        told += f", {gpu.utilisation * 100:.0f} % busy"
    return told


def _worker_row(worker: WorkerView) -> tuple[str, ...]:
    gpus = "\n".join(_gpu(one) for one in worker.gpus)
    return (
        worker.name,
        worker_state(worker),
        worker.engine,
        f"{worker.cpus:g}",
        f"{worker.memory_gb:.1f} GB",
        gpus or "none",
        f"{worker.running} running, {worker.waiting} waiting",
        ", ".join(worker.labels),
        ", ".join(f"{what}: {by or 'nothing'}" for what, by in sorted(worker.enforced.items()))
        or "nothing",
    )


def worker_state(worker: WorkerView) -> str:
    if worker.connected:
        return "; ".join(
            filter(None, ("draining" if worker.draining else "connected", worker.circuit))
        )
    state = f"{'stopped' if worker.left else 'last seen'} {output.ago(worker.seen_at)}"
    if worker.draining:
        return f"{state}; takes nothing new when it is back"
    return "; ".join(filter(None, (state, worker.circuit)))


def _rendering(worker: WorkerView) -> list[str]:
    """What it makes images with, and servers that do not answer; nothing for sketches alone."""
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
