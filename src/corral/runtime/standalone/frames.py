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
        text: str = frame["text"]
        return {"type": "output", "stream": frame["stream"], "text": text}, max(
            1, len(text.encode())
        )
    if kind == "progress":
        told = {"fraction": frame["fraction"], "message": frame["message"]}
        return {"type": "progress", **told}, 1
    if kind == "metric":
        return {"type": "progress", "metrics": frame["values"], "step": frame["step"]}, 1
    return None
