"""A user's own workflow in ComfyUI's API format: a record fills only the inputs its map names."""

from __future__ import annotations

import copy
import hashlib
from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from corral.core.images.backends import Workflow
from corral.core.images.pipeline import ADetailer, Img2Img, Record, Stage, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed, key
from corral.runtime.pipeline.comfyui.graphs import LOADERS, Graph, Pick
from corral.runtime.pipeline.comfyui.names import OWN_VAE, sampler_and_scheduler
from corral.runtime.pipeline.comfyui.server import ComfyUIServer

NUMBERS = ("steps", "cfg_scale", "width", "height", "clip_skip", "denoise", "factor")
WORDS = ("sampler", "scheduler")
LEFT_OPEN = {"sampler": ("", "euler"), "scheduler": ("", "normal", "automatic")}
"""What a plan that does not say has in its records."""
FIXED = {
    "sampler": "sampler_name",
    "scheduler": "scheduler",
    "steps": "steps",
    "cfg_scale": "cfg",
    "width": "width",
    "height": "height",
    "clip_skip": "stop_at_clip_layer",
    "denoise": "denoise",
    "factor": "scale_by",
}
"""The inputs of usual nodes where a workflow has its own."""
NAMES = ("positive", "negative", "model", "vae", "sampler", "scheduler", "image", "seed")
TEXTS = ("positive", "negative")
LINKED = (
    "MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "IMAGE", "MASK", "NOISE", "SIGMAS", "SAMPLER",
    "GUIDER", "CONTROL_NET", "UPSCALE_MODEL",
)  # fmt: skip
"""Inputs that only another node can fill. A value there is accepted, and fails as it runs."""
EXPORT = (
    "Export it in ComfyUI with 'Export (API)'; in older versions switch on the dev mode in its "
    "settings, then 'Save (API Format)'."
)


class Unusable(StageFailed):
    """The worker's owner has to look at it; another worker may do without."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__("stage_missing", f"The workflow {file}: {message}")


def fill(
    workflow: Workflow,
    server: ComfyUIServer,
    pick: Pick,
    stage: Stage,
    record: Record,
    seed: int,
    image: str,
) -> tuple[Graph, list[str], dict[str, str]]:
    """The graph, warnings, and what a card says of the file."""
    nodes, digest = read(workflow.file)
    places = places_of(workflow, nodes)
    values = _values(stage, record, seed, image)
    unheard = [
        name
        for name in (*WORDS, *NUMBERS)
        if name in values and name not in places and not _says(nodes, name, values[name])
    ]
    _closed(workflow, stage, record, values, unheard)
    _known(workflow, server, nodes, places)
    graph = Graph(pick)
    graph.nodes = nodes
    for name, value in values.items():
        for node, field in places.get(name, ()):
            kind = nodes[node]["class_type"]
            chosen = name in ("model", "vae") and server.choices(kind, field)
            if chosen or LOADERS.get(kind) == field or field in ("sampler_name", "scheduler"):
                nodes[node]["inputs"][field] = pick(kind, field, str(value))
            else:
                nodes[node]["inputs"][field] = value
    graph.output = workflow.output or _output(workflow, server, nodes)
    if nodes[graph.output]["class_type"] == "SaveImageWebsocket":
        # It tells its image once, to whoever listens just then; a preview can be asked for.
        images = nodes[graph.output]["inputs"].get("images")
        nodes[graph.output] = {"class_type": "PreviewImage", "inputs": {"images": images}}
    warnings = (
        [f"The workflow has its own {', '.join(unheard)}: the record's are not in its map."]
        if unheard
        else []
    )
    return graph, warnings, {"file": workflow.file, "file_sha256": digest}


def read(file: str) -> tuple[dict[str, Any], str]:
    """Its nodes, and its sha256."""
    try:
        with open(file, "rb") as opened:
            data = opened.read()
        found = msgspec.json.decode(data.removeprefix(BOM_UTF8))
    except OSError as error:
        raise Unusable(file, f"it cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise Unusable(file, f"it is not JSON: {error}.") from error
    if isinstance(found, dict) and isinstance(found.get("nodes"), list):
        raise Unusable(file, f"this is the editor's format. {EXPORT}")
    inner = found.get("prompt") if isinstance(found, dict) else None
    if isinstance(inner, dict) and "class_type" not in inner:
        found = inner  # as it is sent to a server
    if not isinstance(found, dict) or not found:
        raise Unusable(file, f"it is no graph of nodes. {EXPORT}")
    for node, about in found.items():
        whole = isinstance(about, dict) and isinstance(about.get("class_type"), str)
        if not whole or not isinstance(about.get("inputs"), dict):
            raise Unusable(file, f"its node {node} has no class_type or no inputs.")
    return copy.deepcopy(found), hashlib.sha256(data).hexdigest()


def places_of(workflow: Workflow, nodes: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    places: dict[str, list[tuple[str, str]]] = {}
    for name, targets in workflow.map.items():
        if name not in (*NAMES, *NUMBERS):
            known = ", ".join((*NAMES, *NUMBERS))
            raise Unusable(workflow.file, f"its map has {name!r}. A record can fill: {known}.")
        for target in [targets] if isinstance(targets, str) else targets:
            node, dot, field = target.partition(".")
            if not dot or not field:
                raise Unusable(
                    workflow.file, f"map.{name} is {target!r}: say it as node.input, like 6.text."
                )
            if node not in nodes:
                raise Unusable(
                    workflow.file,
                    f"map.{name} is {target!r}, but there is no node {node}. "
                    f"It has {', '.join(sorted(nodes, key=_numeric))}.",
                )
            places.setdefault(name, []).append((node, field))
    if workflow.output and workflow.output not in nodes:
        raise Unusable(workflow.file, f"`output` names the node {workflow.output}: it has none.")
    return places


def _values(stage: Stage, record: Record, seed: int, image: str) -> dict[str, Any]:
    if isinstance(stage, Upscale):
        return {"image": image, "factor": stage.factor}
    sampler, scheduler = sampler_and_scheduler(record.sampler, record.scheduler)
    values: dict[str, Any] = {
        "positive": record.positive,
        "negative": record.negative,
        "model": record.model,
        "vae": record.vae if key(record.vae) not in OWN_VAE else "",
        "sampler": sampler,
        "scheduler": scheduler,
        "seed": seed,
        "steps": record.steps,
        "cfg_scale": record.cfg_scale,
        "width": record.width,
        "height": record.height,
        "clip_skip": -record.clip_skip,
    }
    if isinstance(stage, ADetailer):
        values["positive"] = stage.positive or record.positive
        values["negative"] = stage.negative or record.negative
    if isinstance(stage, Img2Img):
        values["steps"] = stage.steps or record.steps
    if isinstance(stage, Img2Img | ADetailer):
        values["denoise"] = stage.denoise
    if not isinstance(stage, Txt2Img):
        del values["width"], values["height"]
        values["image"] = image
    return {name: value for name, value in values.items() if value != ""}


def _says(nodes: dict[str, Any], name: str, value: Any) -> bool:
    """Whether the workflow has just this by itself."""
    held = [about["inputs"].get(FIXED[name]) for about in nodes.values()]
    own = [one for one in held if one is not None and not isinstance(one, list)]
    return bool(own) and all(one == value for one in own)


def _is_given(name: str, stage: Stage, record: Record) -> bool:
    """What a record has as usual, nobody may have asked for."""
    if name in LEFT_OPEN:
        return key(getattr(record, name)) not in LEFT_OPEN[name]
    part = stage if name in stage.__struct_fields__ and name != "steps" else record
    usual = {field.name: field.default for field in fields(type(part))}
    return bool(getattr(part, name) != usual[name])


def _closed(
    workflow: Workflow,
    stage: Stage,
    record: Record,
    values: dict[str, Any],
    unheard: Sequence[str],
) -> None:
    """What a record says and the workflow would not do is a refusal, never another image."""
    for name in ("positive", "seed", "image"):
        if name in values and name not in workflow.map:
            raise Unusable(workflow.file, f"its map lacks {name!r}: add where it goes, node.input.")
    deaf = [name for name in ("model", "vae", "negative") if values.get(name)]
    deaf = [name for name in deaf if name not in workflow.map]
    deaf += [name for name in unheard if _is_given(name, stage, record)]
    if "steps" in unheard and isinstance(stage, Img2Img) and stage.steps:
        deaf = list(dict.fromkeys([*deaf, "steps"]))
    if record.loras and not isinstance(stage, Upscale):
        deaf.append("loras")
    if isinstance(stage, Txt2Img):
        deaf += [name for name in ("refiner", "hires") if getattr(stage, name) is not None]
    if deaf:
        raise Unusable(
            workflow.file,
            f"the record sets {', '.join(deaf)}, which it has no place for. Add it to the map, or "
            "leave it out of the plan.",
        )


def _known(
    workflow: Workflow,
    server: ComfyUIServer,
    nodes: dict[str, Any],
    places: dict[str, list[tuple[str, str]]],
) -> None:
    lacking = server.missing(dict.fromkeys(about["class_type"] for about in nodes.values()))
    if lacking:
        raise Unusable(
            workflow.file,
            f"the ComfyUI at {server.url} lacks its nodes {', '.join(lacking)}. Install what they "
            "come with, or give this worker another workflow.",
        )
    for name, targets in places.items():
        for node, field in targets:
            kind = nodes[node]["class_type"]
            described = server.field(kind, field)
            if described is None:
                inputs = (server.about(kind) or {}).get("input", {})
                has = [*inputs.get("required", {}), *inputs.get("optional", {})]
                raise Unusable(
                    workflow.file,
                    f"map.{name} is '{node}.{field}', but a {kind} has no input {field!r}. "
                    f"It has {', '.join(has)}.",
                )
            takes = described[0] if described and isinstance(described[0], str) else ""
            if takes in LINKED or (name in TEXTS and takes in ("INT", "FLOAT", "BOOLEAN")):
                raise Unusable(
                    workflow.file,
                    f"map.{name} is '{node}.{field}', which takes {takes}: name the input that "
                    "has it as a value, like 6.text of a CLIPTextEncode.",
                )


def _output(workflow: Workflow, server: ComfyUIServer, nodes: dict[str, Any]) -> str:
    shown = [
        node
        for node, about in nodes.items()
        if (server.about(about["class_type"]) or {}).get("output_node")
    ]
    saved = [node for node in shown if nodes[node]["class_type"] == "SaveImage"]
    for found in (shown, saved):
        if len(found) == 1:
            return found[0]
    if not shown:
        raise Unusable(workflow.file, "it shows no image: add a SaveImage or PreviewImage node.")
    raise Unusable(
        workflow.file, f"the nodes {', '.join(shown)} all show images: name one as `output`."
    )


def _numeric(node: str) -> tuple[int, str]:
    return (int(node) if node.isdigit() else 1 << 30, node)
