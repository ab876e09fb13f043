"""What ComfyUI's refusals and failures mean for a job. The status alone says little: a graph may be
accepted with errors inside, and an interrupted one reads as failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.runtime.pipeline.backend import NO_MEMORY, StageFailed, excerpt
from corral.runtime.pipeline.comfyui.graphs import LOADERS
from corral.runtime.pipeline.comfyui.names import EXTENSIONS

EXCERPT = 500
"""Characters of a server's own words in a message of ours."""
MEMORY_TYPES = ("OutOfMemoryError", "MemoryError", "OOM_EXCEPTION")
MEMORY_WORDS = (*NO_MEMORY, "allocation on device", "failed to allocate")
DEVICE_TYPES = ("AcceleratorError",)
DEVICE_WORDS = ("cuda error", "hip error", "cudnn error", "cublas error", "device-side assert")
"""The card or its driver is in a bad way: no job's fault."""
FILE_TYPES = ("FileNotFoundError", "SafetensorError", "UnpicklingError")
FILE_WORDS = (
    "could not detect model type",
    "clip input is invalid: none",
    "vae is invalid: none",
    "incomplete metadata, file not fully covered",
)
"""A model's file is gone, cut short or of another kind: another worker may have a good one."""
CHOICES = ("sampler_name", "scheduler")
"""Fields with a list of words and not of files."""


def refused(status: int, body: Any, text: str) -> StageFailed:
    """For an answer other than 200 to a submission."""
    if status == 400 and isinstance(body, dict):
        error = body.get("error")
        error = error if isinstance(error, dict) else {"message": str(error or text)}
        nodes = body.get("node_errors")
        if isinstance(nodes, dict) and nodes:
            return invalid(nodes)
        kind = str(error.get("type", ""))
        said = _said(error.get("message"), error.get("details"))
        if kind == "missing_node_type" or (kind == "invalid_prompt" and "not exist" in said):
            return StageFailed("stage_missing", f"This ComfyUI lacks a node: {said}")
        return StageFailed("bad_job", f"ComfyUI refused the graph ({kind or status}): {said}")
    if status in (401, 403):
        return StageFailed(
            "backend_down",
            f"ComfyUI, or a proxy before it, refused us with {status}: set `username` and "
            "`password` of this worker's comfyui backend, or let it in without.",
        )
    if status in (404, 405) or 300 <= status < 400:
        return StageFailed(
            "backend_down",
            f"What answers there is no ComfyUI ({status}): correct `url` of this worker's comfyui "
            "backend. Where a proxy has it under a path, that belongs to it.",
        )
    if status == 413:
        return StageFailed(
            "stage_missing",
            "The image is too large for this ComfyUI, or for a proxy before it (413): start it "
            "with a larger --max-upload-size, or raise the proxy's limit.",
        )
    return StageFailed(
        "exception", f"ComfyUI answered {status}: {excerpt(text, EXCERPT) or 'no text'}"
    )


def invalid(node_errors: Mapping[str, Any]) -> StageFailed:
    """Nodes whose inputs were found wanting, of a refused graph or of an accepted one."""
    missing, lacking, wrong = [], [], []
    for node, about in node_errors.items():
        kind = about.get("class_type", "?")
        for error in about.get("errors", []):
            field = (error.get("extra_info") or {}).get("input_name", "")
            said = f"{kind} (node {node}): {_said(error.get('message'), error.get('details'))}"
            match error.get("type"):
                case "value_not_in_list" if _names_a_file(field, error):
                    missing.append(said)
                case "value_not_in_list":
                    lacking.append(said)
                case "required_input_missing":
                    lacking.append(said)
                case _:
                    wrong.append(said)
    if wrong:
        return StageFailed("bad_job", f"ComfyUI refused the graph: {_all(wrong)}")
    if missing:
        return StageFailed("model_missing", f"This ComfyUI lacks a model: {_all(missing)}")
    return StageFailed(
        "stage_missing",
        f"This ComfyUI lacks what the graph asks for: {_all(lacking) or 'it does not say what'}",
    )


def failed(about: Mapping[str, Any]) -> StageFailed:
    """For `execution_error`: a node raised an exception."""
    kind, message = str(about.get("exception_type", "")), str(about.get("exception_message", ""))
    where = f"{about.get('node_type', '?')} (node {about.get('node_id', '?')})"
    said = f"{where} failed: {kind}: {excerpt(message.strip(), EXCERPT)}"
    last, lower = kind.rsplit(".", 1)[-1], message.lower()
    if last in MEMORY_TYPES or any(words in lower for words in MEMORY_WORDS):
        return StageFailed("out_of_memory", said)
    if last in DEVICE_TYPES or any(words in lower for words in DEVICE_WORDS):
        return StageFailed("backend_down", said)
    loads = "Loader" in where or "Provider" in where
    if (loads and last in FILE_TYPES) or any(words in lower for words in FILE_WORDS):
        return StageFailed("model_missing", f"This ComfyUI cannot use a model's file: {said}")
    return StageFailed("exception", said)


def _names_a_file(field: str, error: Mapping[str, Any]) -> bool:
    """Not a sampler, a way to resize, or a switch that another version has not."""
    value = str((error.get("extra_info") or {}).get("received_value", "")).lower()
    return field in LOADERS.values() or value.endswith(EXTENSIONS)


def _said(message: Any, details: Any) -> str:
    told = ": ".join(str(part).strip() for part in (message, details) if part)
    return excerpt(told, EXCERPT)


def _all(said: list[str]) -> str:
    return excerpt("; ".join(said), 2 * EXCERPT)
