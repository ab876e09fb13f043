"""What the fake ComfyUI makes of a graph before it takes it: its `execution.validate_prompt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Response
from fastapi.responses import JSONResponse

from tests.fakes.comfyui_nodes import LINKS, described, options

if TYPE_CHECKING:
    from tests.fakes.comfyui import FakeComfyUI

Graph = dict[str, Any]
Checked = tuple[list[str], dict[str, Any], Response | None]


def refused(
    kind: str, message: str, details: str = "", node_errors: dict[str, Any] | None = None
) -> Checked:
    error = {"type": kind, "message": message, "details": details, "extra_info": {}}
    return [], {}, JSONResponse({"error": error, "node_errors": node_errors or {}}, 400)


def checked(fake: FakeComfyUI, graph: Any) -> Checked:
    """The outputs that can be made, what is wrong with the others, and the refusal where there are
    none."""
    if not isinstance(graph, dict):
        return refused("no_prompt", "No prompt provided")
    known = described(fake.files, fake.packs)
    for node, about in graph.items():
        if about.get("class_type") not in known:
            said = f"Cannot execute because node {about.get('class_type')} does not exist."
            return refused("invalid_prompt", said, f"Node ID '#{node}'")
    outputs = [node for node in graph if known[graph[node]["class_type"]]["output_node"]]
    if not outputs:
        return refused("prompt_no_outputs", "Prompt has no outputs")
    node_errors: dict[str, Any] = {}
    good = [node for node in outputs if valid(fake, graph, known, node, node_errors)]
    if not good:
        said = "Prompt outputs failed validation"
        return refused("prompt_outputs_failed_validation", said, node_errors=node_errors)
    return good, node_errors, None


def valid(fake: FakeComfyUI, graph: Graph, known: Graph, node: str, errors: dict[str, Any]) -> bool:
    """One node and those it is fed by; what is wrong with them goes into `errors`."""
    kind = graph[node]["class_type"]
    inputs, found, below = graph[node]["inputs"], [], True

    def wrong(what: str, field: str, details: str) -> None:
        extra = {"input_name": field, "received_value": inputs.get(field)}
        found.append({"type": what, "message": what.replace("_", " ").capitalize(),
                      "details": details, "extra_info": extra})  # fmt: skip

    for field, about in known[kind]["input"]["required"].items():
        if field not in inputs:
            wrong("required_input_missing", field, field)
            continue
        value, offered = inputs[field], options(about)
        if isinstance(value, list):
            linked = graph.get(value[0])
            if linked is None:
                wrong("bad_linked_input", field, f"{field}, node {value[0]}")
            elif known[linked["class_type"]]["output"][value[1]] != about[0]:
                wrong("return_type_mismatch", field, f"{field}, {about[0]}")
            else:
                below = valid(fake, graph, known, value[0], errors) and below
        elif offered is None and about[0] in LINKS:
            wrong("bad_linked_input", field, f"{field}, {value}")
        elif kind == "LoadImage":
            if value not in fake.inputs:
                said = f"image - Invalid image file: {value}"
                wrong("custom_validation_failed", field, said)
        elif offered is not None:
            if value not in offered:
                wrong("value_not_in_list", field, f"{field}: '{value}' not in {offered}")
        elif len(about) > 1 and "min" in about[1] and value < about[1]["min"]:
            wrong("value_smaller_than_min", field, field)
        elif len(about) > 1 and "max" in about[1] and value > about[1]["max"]:
            wrong("value_bigger_than_max", field, field)
    if found:
        errors[node] = {"errors": found, "dependent_outputs": [], "class_type": kind}
    return not found and below
