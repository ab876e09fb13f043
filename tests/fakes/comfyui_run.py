"""One prompt of the fake ComfyUI: nodes in order, cached or executed, and what is said of it."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from corral.runtime.pipeline import images
from tests.fakes.comfyui_nodes import described, outputs_of, png

if TYPE_CHECKING:
    from tests.fakes.comfyui import Life


class Interrupted(Exception):
    pass


class NodeFailed(Exception):
    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message


class Run:
    """One prompt."""

    def __init__(self, life: Life, item: list[Any]) -> None:
        self.life, self.fake = life, life.fake
        _, self.id, self.graph, extra, self.wanted = item
        self.client = extra.get("client_id")
        self.shows = self.fake.own_ids or extra.get("preview_method") != "none"
        self.item = item
        self.keys: dict[str, str] = {}
        self.drawn: dict[str, str] = {}
        self.ui: dict[str, Any] = {}
        self.messages: list[Any] = []

    def go(self) -> None:
        self.log("execution_start", {})
        order = list(self.order())
        cached = [node for node in order if self.key(node) in self.life.cache]
        self.log("execution_cached", {"nodes": cached})
        try:
            for node in order:
                kind = self.graph[node]["class_type"]
                if kind in self.fake.blocking:
                    said = f"Execution Blocked: {self.fake.blocking[kind]}"
                    self.life.say("execution_error", {
                        "prompt_id": self.id, "node_id": node, "node_type": kind, "executed": [],
                        "exception_type": "ExecutionBlocked", "exception_message": said,
                        "traceback": []}, self.client)  # fmt: skip
                    break  # nothing after it has what it needs
                self.node(node)
        except Interrupted:
            self.log("execution_interrupted", {"node_id": "0", "executed": []})
            good = False
        except NodeFailed as error:
            self.log("execution_error", {
                "node_id": node, "node_type": self.graph[node]["class_type"], "executed": [],
                "exception_type": error.kind, "exception_message": error.message,
                "current_inputs": {"number": [float("nan")]}, "traceback": []})  # fmt: skip
            good = False
        else:
            good = True
            if not self.fake.own_ids:
                self.log("execution_success", {})
        # As with the real cache, only what this graph names is kept, used or not.
        used = {self.key(node) for node in self.graph}
        self.life.cache = {key: made for key, made in self.life.cache.items() if key in used}
        self.life.over.wait(self.fake.lag_s)
        status = {"status_str": "success" if good else "error", "completed": good,
                  "messages": self.messages}  # fmt: skip
        entry = {"prompt": self.item, "outputs": self.ui}
        self.life.ended(self.id, entry if self.fake.own_ids else {**entry, "status": status})
        if self.client is not None and not self.fake.no_last_word:
            self.life.say("executing", {"node": None, "prompt_id": self.id}, self.client)

    def log(self, event: str, data: dict[str, Any]) -> None:
        data = {**data, "prompt_id": self.id}
        if not self.fake.own_ids:
            data["timestamp"] = int(time.time() * 1000)
        self.messages.append([event, data])
        if self.client is not None or event != "execution_cached":
            self.life.say(event, data, self.client)

    def order(self) -> Iterator[str]:
        seen: set[str] = set()

        def visit(node: str) -> Iterator[str]:
            if node in seen:
                return
            seen.add(node)
            for value in self.graph[node]["inputs"].values():
                if isinstance(value, list):
                    yield from visit(value[0])
            yield node

        for node in self.wanted:
            yield from visit(node)

    def key(self, node: str, *, drawn: bool = False) -> str:
        """By which its outputs are kept. `drawn`: what they are, by the inputs that it reads; one
        that it does not know is passed over, and makes it another node to the cache all the same.
        """
        known = self.drawn if drawn else self.keys
        if node not in known:
            about = self.graph[node]
            kinds = described(self.fake.files, self.fake.packs)
            reads = kinds.get(about["class_type"], {}).get("input", {})
            inputs = {
                name: [self.key(value[0], drawn=drawn), value[1]]
                if isinstance(value, list)
                else value
                for name, value in about["inputs"].items()
                if not drawn or not reads or any(name in group for group in reads.values())
            }
            if about["class_type"] == "LoadImage":
                data = self.fake.inputs[about["inputs"]["image"]]
                inputs = {"image": hashlib.sha256(data).hexdigest()}
            said = json.dumps([about["class_type"], inputs], sort_keys=True)
            known[node] = hashlib.sha256(said.encode()).hexdigest()
        return known[node]

    def node(self, node: str) -> None:
        kind = self.graph[node]["class_type"]
        if self.key(node) in self.life.cache:
            _, ui = self.life.cache[self.key(node)]
            if ui is not None and self.client is not None:
                self.ui[node] = ui
                self.executed(node, ui)
            return
        self.fake.executed.append(kind)
        if self.client is not None:
            state = {"prompt_id": self.id, "nodes": {node: {"value": 0, "max": 1}}}
            self.life.say("progress_state", state, self.client)
            self.life.say("executing", {"node": node, "prompt_id": self.id}, self.client)
        self.look()
        if kind in self.fake.failing:
            raise NodeFailed(*self.fake.failing[kind])
        inputs = {
            name: self.life.cache[self.key(value[0])][0][value[1]]
            if isinstance(value, list)
            else value
            for name, value in self.graph[node]["inputs"].items()
        }
        if "steps" in inputs:
            for _ in range(self.fake.faces if kind == "FaceDetailer" else 1):
                self.steps(node, inputs)
        if kind == "SaveImageWebsocket":  # told once, as a preview is, and kept nowhere
            self.life.cache[self.key(node)] = ([], None)
            if self.client is not None:
                self.life.send(struct.pack(">II", 1, 2) + png(inputs["images"]), self.client)
            return
        if "images" in inputs:
            ui = {"images": [self.save(kind, inputs)]}
            self.life.cache[self.key(node)] = ([], ui)
            self.ui[node] = ui
            self.executed(node, ui)
            return
        loaded: Image | None = None
        if kind == "LoadImage":
            loaded = images.from_bytes(self.fake.inputs[inputs["image"]]).convert("RGB")
        made = outputs_of(kind, self.key(node, drawn=True), inputs, loaded)
        self.life.cache[self.key(node)] = (made, None)

    def executed(self, node: str, ui: dict[str, Any]) -> None:
        data = {"node": node, "output": ui, "prompt_id": self.id}
        if self.client is not None:
            self.life.say("executed", data, self.client)

    def steps(self, node: str, inputs: dict[str, Any]) -> None:
        first = inputs.get("start_at_step", 0)
        count = min(inputs.get("end_at_step", inputs["steps"]), inputs["steps"]) - first
        for step in range(1, count + 1):
            hold = self.fake.hold
            if hold is not None and step == hold.step:
                hold.reached.set()
                while not hold.released.wait(0.005):
                    self.look()
            self.life.over.wait(self.fake.step_s)
            self.look()
            data = {"value": step, "max": count, "prompt_id": self.id, "node": node}
            self.life.say("progress", data, self.client)
            if self.client is not None and self.shows:
                self.fake.previews += 1
                self.life.send(struct.pack(">II", 1, 2) + self.fake.preview, self.client)

    def look(self) -> None:
        if self.life.interrupt.is_set() or self.life.over.is_set():
            raise Interrupted

    def save(self, kind: str, inputs: dict[str, Any]) -> dict[str, str]:
        self.life.files_made += 1
        place = "output" if kind == "SaveImage" else "temp"
        prefix = inputs.get("filename_prefix", "ComfyUI_temp_abcde")
        folder, _, stem = str(prefix).rpartition("/")
        name = f"{stem}_{self.life.files_made:05}_.png"
        path = f"{folder}/{name}" if folder else name
        self.fake.outputs[place, path] = png(inputs["images"])
        return {"filename": name, "subfolder": folder, "type": place}
