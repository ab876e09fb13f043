"""ComfyUI behind the backend interface: a graph for each image, followed until it ends.

The history is the truth about an end; events only say when to look and how far it is. A prompt
that is in neither queue nor history went with a server that restarted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from PIL.Image import Image

from corral.core.images.backends import Workflow
from corral.core.images.pipeline import (
    ADetailer,
    Img2Img,
    Record,
    Stage,
    Txt2Img,
    Upscale,
    stage_name,
)
from corral.runtime.pipeline import images
from corral.runtime.pipeline.backend import (
    Rendered,
    StageFailed,
    Tell,
    later_than,
    listed,
    seed_of,
    stop_if_cancelled,
    unless_begun,
)
from corral.runtime.pipeline.comfyui import errors, graphs
from corral.runtime.pipeline.comfyui import workflow as comfyui_workflow
from corral.runtime.pipeline.comfyui.ended_prompt import EndedPrompt, ended
from corral.runtime.pipeline.comfyui.graphs import Graph
from corral.runtime.pipeline.comfyui.names import by_key, files_like
from corral.runtime.pipeline.comfyui.progress import GraphProgress
from corral.runtime.pipeline.comfyui.server import (
    ANSWER_S,
    Busy,
    ComfyUIServer,
    Events,
    Refused,
    Unanswered,
    versions_of,
)

T = TypeVar("T")
SILENT_S = 30.0
"""How long a server that went silent under a prompt may take to come back."""
BUSY_S = 600.0
"""How long one may that takes connections and does not answer: the first load of a model from a
slow disk, a CPU that is busy with all of its cores. To restart it would begin that anew."""
SUBMISSIONS = 3
"""Of one graph, where the server restarts under it."""
WAIT_S, LOOK_S = 0.2, 5.0
"""Without a word for so long, we ask."""
SOON_S = 0.05
"""The history has an end only shortly after it was announced."""
PACKS = {
    "FaceDetailer": "ComfyUI-Impact-Pack",
    "UltralyticsDetectorProvider": "ComfyUI-Impact-Subpack",
}


class ComfyUI:
    name = "comfyui"

    def __init__(
        self,
        *,
        url: str = "http://127.0.0.1:8188",
        username: str = "",
        password: str = "",
        workflow: Any = None,
        patience_s: float = SILENT_S,
        busy_s: float = BUSY_S,
        look_s: float = LOOK_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._server = ComfyUIServer(url, username, password, answer_s=answer_s)
        self._workflow: Workflow | None = msgspec.convert(workflow, Workflow | None)
        self._patience_s, self._busy_s, self._look_s = patience_s, busy_s, look_s
        self._begun = False
        """Something was submitted for this stage."""

    def render(self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell) -> Rendered:
        self._begun = False
        try:
            return self._render(stage, record, images, tell)
        except Refused as error:
            raise StageFailed("stage_missing", self._down(str(error)).message) from error
        except Unanswered as error:
            raise unless_begun(self._down(str(error)), self._begun) from error
        except StageFailed as failed:
            raise unless_begun(failed, self._begun) from failed

    def _render(
        self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell
    ) -> Rendered:
        rendered = Rendered(images=[], seconds=0.0, info={})
        count = record.batch_size if isinstance(stage, Txt2Img) else len(images)
        events = self._server.events(uuid.uuid4().hex)
        self._patiently(tell, lambda: self._describe(rendered), gone_s=0.0)
        try:
            # Before anything is submitted: what is said before is gone.
            self._patiently(tell, events.connect, gone_s=0.0)
            for later in later_than(stage, record):
                self._patiently(tell, partial(self._drawn_up, later, record, 0, "", (64, 64)))
            for place in range(count):
                image = images[place] if images else None
                self._one(stage, record, place, count, image, events, tell, rendered)
        finally:
            events.close()
        return rendered

    def _one(
        self,
        stage: Stage,
        record: Record,
        place: int,
        count: int,
        image: Image | None,
        events: Events,
        tell: Tell,
        rendered: Rendered,
    ) -> None:
        """One image of the batch."""
        seed = seed_of(record, place)

        def make() -> Graph:
            return self._graph(stage, record, seed, image, rendered)

        graph, ended = self._execute(make, events, tell, (place, count))
        made = self._patiently(tell, lambda: self._fetch(graph, ended))
        kind = graph.nodes[graph.output]["class_type"]
        if made is None:
            raise StageFailed(
                "exception", f"ComfyUI no longer has the file that its {kind} made just now."
            )
        if not made:
            raise StageFailed(
                "backend_mismatch",
                f"ComfyUI reports success and has no image of node {graph.output} ({kind}).",
            )
        rendered.images += made
        rendered.seeds += [seed] * len(made)
        rendered.seconds += ended.seconds
        rendered.loaded |= bool(graph.checkpoints - ended.cached)
        known = rendered.info["models"]
        known.update({name: known.get(name, "") for name in graph.models})

    def _graph(
        self, stage: Stage, record: Record, seed: int, image: Image | None, rendered: Rendered
    ) -> Graph:
        """Made anew for each submission: a server that restarted may have lost the image too."""
        place = "temp" if self._own(stage) is None else "input"
        name = self._server.upload(images.to_png(image), place) if image is not None else ""
        size = image.size if image is not None else (0, 0)
        graph, warnings, about = self._drawn_up(stage, record, seed, name, size)
        rendered.warnings = list(dict.fromkeys([*rendered.warnings, *warnings]))
        if about:
            rendered.info["workflow"] = about
        return graph

    def _own(self, stage: Stage) -> Workflow | None:
        own = self._workflow
        return own if own is not None and own.stage == stage_name(stage) else None

    def _drawn_up(
        self, stage: Stage, record: Record, seed: int, name: str, size: tuple[int, int]
    ) -> tuple[Graph, list[str], dict[str, str]]:
        """With warnings, and what a card says of a workflow. All names in it are the server's."""
        own = self._own(stage)
        if own is not None:
            return comfyui_workflow.fill(own, self._server, self._pick, stage, record, seed, name)
        match stage:
            case Txt2Img():
                graph = graphs.txt2img(stage, record, seed, self._pick)
            case Img2Img():
                graph = graphs.img2img(stage, record, seed, name, self._pick)
            case ADetailer():
                self._has(stage, ("FaceDetailer", "UltralyticsDetectorProvider"))
                graph = graphs.adetailer(stage, record, seed, name, self._pick)
            case Upscale():
                graph = graphs.upscale(stage, record, name, size, self._pick)
        self._has(stage, graph.kinds)
        return graph, [], {}

    def _has(self, stage: Stage, kinds: Sequence[str]) -> None:
        lacking = self._server.missing(kinds)
        if lacking:
            named = [f"{kind} (of {PACKS[kind]})" if kind in PACKS else kind for kind in lacking]
            raise StageFailed(
                "stage_missing",
                f"The ComfyUI at {self._server.url} cannot do {stage_name(stage)}: it lacks the "
                f"nodes {', '.join(named)}. Install them there, or send the job elsewhere.",
            )

    def _pick(self, kind: str, field: str, wanted: str) -> str:
        for fresh in (False, True):
            if fresh:
                self._server.forget(kind)
            offered = self._server.choices(kind, field)
            if field in errors.CHOICES:
                found = by_key(wanted, offered)
                matches = [found] if found is not None else []
            else:
                matches = files_like(wanted, offered)
            if len(matches) == 1:
                return matches[0]
        if matches:
            raise StageFailed(
                "model_missing",
                f"{wanted!r} may be {' or '.join(matches)} on this ComfyUI: name it in full.",
            )
        if self._server.about(kind) is None:
            raise StageFailed("stage_missing", f"This ComfyUI lacks the node {kind}.")
        choice = field in errors.CHOICES
        bare: list[str] = []
        if kind == "CheckpointLoaderSimple":
            bare = files_like(wanted, self._server.choices("UNETLoader", "unet_name"))
        raise StageFailed(
            "stage_missing" if choice else "model_missing",
            f"The ComfyUI at {self._server.url} has no {field} {wanted!r}. "
            + (
                f"It has {bare[0]} as a diffusion model, without text encoder and VAE: give this "
                "worker a workflow of your own that loads these."
                if bare
                else f"It has {listed(offered, wanted)}."
            ),
        )

    def _execute(
        self, make: Callable[[], Graph], events: Events, tell: Tell, part: tuple[int, int]
    ) -> tuple[Graph, EndedPrompt]:
        connections = events.connections
        for _ in range(SUBMISSIONS):
            graph = self._patiently(tell, make)
            ended = self._attempt(graph, events, GraphProgress(graph, tell, *part))
            if ended is not None:
                return graph, ended
        if events.connections == connections:  # it was there all the time
            raise StageFailed(
                "exception",
                f"Somebody took it out of the queue of the ComfyUI at {self._server.url}, "
                f"{SUBMISSIONS} times.",
            )
        raise StageFailed(
            "backend_down",
            f"The ComfyUI at {self._server.url} forgot the prompt {SUBMISSIONS} times: it was "
            "restarted, or somebody cleared its queue. Its own log says which.",
        )

    def _patiently(self, tell: Tell, ask: Callable[[], T], gone_s: float | None = None) -> T:
        """What may be asked twice, of a server that is busy or comes back."""
        gone_s = self._patience_s if gone_s is None else gone_s
        began = time.monotonic()
        while True:
            stop_if_cancelled(tell)
            try:
                return ask()
            except Unanswered as error:
                waited = time.monotonic() - began
                if waited > (self._busy_s if isinstance(error, Busy) else gone_s):
                    raise
            time.sleep(WAIT_S)

    def _attempt(self, graph: Graph, events: Events, progress: GraphProgress) -> EndedPrompt | None:
        """None: the server has forgotten it. Its id is new each time: an old one would show what
        the history has of before."""
        prompt_id = str(uuid.uuid4())
        try:
            self._begun = True
            with suppress(Unanswered):  # it may have arrived all the same
                nodes = graphs.rendered_anew(graph.nodes, prompt_id)
                prompt_id = self._server.submit(nodes, events.client_id, prompt_id)
            entry, waited_s = self._follow(prompt_id, events, progress)
            return ended(entry, waited_s, graph, progress) if entry is not None else None
        except StageFailed:
            raise
        except BaseException:
            self._server.stop(prompt_id)
            raise

    def _follow(
        self, prompt_id: str, events: Events, progress: GraphProgress
    ) -> tuple[dict[str, Any] | None, float]:
        """Its entry in the history, and how long that took."""
        began = heard = time.monotonic()
        soon_s = SOON_S
        look_at = began if not events.connected else began + self._look_s
        while True:
            stop_if_cancelled(progress.tell)
            try:
                if not events.connected:
                    events.connect()
                    look_at = 0.0  # whatever happened meanwhile is not told again
                event = events.next(WAIT_S)
                if event is not None:
                    heard = time.monotonic()
                    about = event[1].get("prompt_id")
                    if about in (None, prompt_id) and progress.note(*event):
                        look_at = 0.0
                    elif about == prompt_id and look_at:
                        look_at = heard + self._look_s
                if time.monotonic() < look_at:
                    continue
                found = self._server.find(prompt_id)
            except Unanswered as error:
                patience_s = self._busy_s if isinstance(error, Busy) else self._patience_s
                if time.monotonic() - heard > patience_s:
                    raise self._down(str(error)) from error
                time.sleep(WAIT_S)
                continue
            heard = time.monotonic()
            if found.entry is not None or found.lost:
                return found.entry, heard - began
            progress.waiting(found.waiting_behind)
            look_at = heard + (soon_s if progress.over else self._look_s)
            soon_s = min(2 * soon_s, self._look_s) if progress.over else SOON_S

    def _fetch(self, graph: Graph, ended: EndedPrompt) -> list[Image] | None:
        """None: a file is there no longer."""
        found = []
        for image in ended.outputs.get(graph.output, {}).get("images", ()):
            data = self._server.view(image)
            if data is None:
                return None
            try:
                found.append(images.from_bytes(data))
            except (OSError, ValueError) as error:
                raise StageFailed(
                    "backend_mismatch", f"ComfyUI's {image.get('filename')} is no image: {error}."
                ) from error
        return found

    def _describe(self, rendered: Rendered) -> None:
        """For the replay card. A server that was restarted may be another version."""
        stats = self._server.get("/system_stats")
        device = (stats.get("devices") or [{}])[0]
        rendered.info = {
            "models": {},
            "versions": versions_of(stats),
            "device": str(device.get("name", "")),
        }

    def _down(self, reason: str) -> StageFailed:
        self._server.forget()
        return StageFailed(
            "backend_down",
            f"No answer from the ComfyUI at {self._server.url} ({reason}). Start it, or correct "
            "`url` of this worker's comfyui backend.",
        )

    def close(self) -> None:
        self._server.close()
