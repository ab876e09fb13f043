"""How far a graph is: its nodes weighed by their steps, told in words a person understands."""

from __future__ import annotations

from typing import Any

from corral.runtime.pipeline.backend import Tell
from corral.runtime.pipeline.comfyui.graphs import Graph

ENDS = ("execution_success", "execution_error", "execution_interrupted")


class GraphProgress:
    def __init__(self, graph: Graph, tell: Tell, place: int, count: int) -> None:
        self.tell = tell
        self.over = False
        """The server said that it ended; the history says how."""
        self.heard: dict[str, dict[str, Any]] = {}
        """Ends that it told. Old servers' history lacks them, and no server's history says that a
        node held back its result."""
        self._labels = graph.labels
        self._weights = {node: _weight(about) for node, about in graph.nodes.items()}
        self._whole = sum(self._weights.values()) or 1.0
        self._done: set[str] = set()
        self._most = 0.0
        self._now = ""
        self._place, self._count = place, count

    def note(self, event: str, about: dict[str, Any]) -> bool:
        """True where the prompt has ended."""
        match event:
            case "execution_cached":
                self._done.update(about.get("nodes", ()))
                self._say(0.0, "")
            case "executing":
                if about.get("node") is None:
                    self.over = "prompt_id" in about
                    return self.over
                self._turn_to(str(about["node"]))
                self._say(0.0, "")
            case "progress":
                if "node" in about:
                    self._turn_to(str(about["node"]))
                value, top = float(about.get("value", 0)), float(about.get("max", 0)) or 1.0
                self._say(value / top, f"step {value:g} of {top:g}")
            case _ if event in ENDS:
                self.heard[event] = about
                self.over = True
        return self.over

    def waiting(self, behind: int | None) -> None:
        if behind is not None:
            self.tell.progress(self._place / self._count, f"{behind + 1} before it at ComfyUI")

    def _turn_to(self, node: str) -> None:
        if node != self._now:
            self._done.add(self._now)
            self._now = node

    def _say(self, share: float, what: str) -> None:
        done = sum(self._weights.get(node, 0.0) for node in self._done - {self._now})
        done += min(share, 1.0) * self._weights.get(self._now, 0.0)
        said = ", ".join(
            part for part in (self._image(), self._labels.get(self._now), what) if part
        )
        # A node may count more than once from the start, a face after the other.
        self._most = max(self._most, min(done / self._whole, 1.0))
        self.tell.progress((self._place + self._most) / self._count, said)

    def _image(self) -> str:
        return f"image {self._place + 1} of {self._count}" if self._count > 1 else ""


def _weight(about: dict[str, Any]) -> float:
    """A node that samples counts for its steps, all others for one."""
    inputs = about["inputs"]
    steps = inputs.get("steps")
    if not isinstance(steps, int):
        return 1.0
    first, last = inputs.get("start_at_step", 0), inputs.get("end_at_step", steps)
    if isinstance(first, int) and isinstance(last, int):
        return float(max(min(last, steps) - first, 1))
    return float(max(steps, 1))
