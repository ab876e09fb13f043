"""Views and events as JSON values: what `--json` prints and what REST answers, word for word."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from corral.contract import views


def plain(view: Any) -> Any:
    """Views as JSON values: times to the microsecond, without the bytes of results."""
    found = rounded(msgspec.to_builtins(view))
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, dict):
            without_bytes(one)
    return found


def plain_event(event: views.Event) -> dict[str, Any]:
    """An event as a JSON object: output as text, results without their bytes."""
    found: dict[str, Any] = msgspec.to_builtins(event)
    if isinstance(event, views.Output):
        found["text"] = event.data.decode("utf-8", "replace")
        del found["data"]
    return without_bytes(rounded(found))


def rounded(value: Any) -> Any:
    """Times to the microsecond; what follows is noise of the float. Other numbers are not ours.
    What is not finite JSON has no number for: it gets the words that protobuf has for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: round(one, 6)
        if isinstance(one, float) and (key in ("at", "seconds") or key.endswith("_at"))
        else rounded(one)
        for key, one in value.items()
    }


def without_bytes(found: dict[str, Any]) -> dict[str, Any]:
    for name, key in (("result", "data"), ("failure", "pickled")):
        if found.get(name):
            found[name].pop(key, None)
    return found
