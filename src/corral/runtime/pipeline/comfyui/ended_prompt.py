"""How a prompt ended, by what the history has of it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui import errors
from corral.runtime.pipeline.comfyui.graphs import Graph
from corral.runtime.pipeline.comfyui.progress import GraphProgress


class EndedPrompt(Struct):
    """A prompt that succeeded."""

    outputs: dict[str, Any]
    seconds: float
    cached: set[str]


def ended(
    entry: dict[str, Any], waited_s: float, graph: Graph, progress: GraphProgress
) -> EndedPrompt:
    """Raises StageFailed where it did not succeed. An interrupt reads as an error there: only the
    messages tell one from the other."""
    status = entry.get("status") or {}
    said = dict(status.get("messages", ()))
    outputs = entry.get("outputs") or {}
    if not outputs.get(graph.output):
        said = {**progress.heard, **said}
    if "execution_interrupted" in said:
        raise StageFailed(
            "exception",
            "Somebody interrupted it at the ComfyUI server. It is tried again as often as its "
            "`retries` allow.",
        )
    if "execution_error" in said:
        raise errors.failed(said["execution_error"])
    if status and status.get("status_str") != "success":
        raise StageFailed(
            "exception", f"ComfyUI reports {status.get('status_str')!r} and no reason."
        )
    began = said.get("execution_start", {}).get("timestamp")
    done = said.get("execution_success", {}).get("timestamp")
    timed = isinstance(began, int | float) and isinstance(done, int | float)
    return EndedPrompt(
        outputs=outputs,
        seconds=max(done - began, 0) / 1000 if timed else waited_s,
        cached=set(said.get("execution_cached", {}).get("nodes", ())),
    )
