"""Frames of a runner as messages of the door."""

from __future__ import annotations

import binascii
from typing import Any

Frame = dict[str, Any]


def message_of(frame: Frame) -> tuple[dict[str, Any], int] | None:
    """What is told of a frame while the attempt runs, and what that adds to its number; None for
    those that say something else. KeyError, TypeError or ValueError where a frame is none."""
    kind = frame["frame"]
    if kind == "output":
        if data := frame.get("data"):
            return {"type": "output", "stream": frame["stream"], "data": data}, len(
                binascii.a2b_base64(data)
            )
        text = frame["text"]
        size = len(str.encode(text))  # TypeError where it is no text
        return {"type": "output", "stream": frame["stream"], "text": text}, max(1, size)
    if kind == "progress":
        told = {"fraction": frame["fraction"], "message": frame["message"]}
        return {"type": "progress", **told}, 1
    if kind == "metric":
        return {"type": "progress", "metrics": frame["values"], "step": frame["step"]}, 1
    return None


def end_of(frame: Frame) -> dict[str, Any]:
    """The result, or the failure, in a frame that says how the job ended; it raises likewise."""
    if frame["frame"] == "result":
        result: dict[str, Any] = frame["result"]
        return result
    failure: dict[str, Any] = frame["failure"]
    for name in ("code", "message"):
        str.encode(failure[name])
    return failure
