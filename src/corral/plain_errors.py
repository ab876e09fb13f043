"""Validation errors in words that also those understand who do not write Python."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin


def choices_of(kind: Any) -> list[str]:
    """The words that a setting may have, where it has a closed set of them."""
    if get_origin(kind) is Literal:
        return [str(one) for one in get_args(kind)]
    return [word for inner in get_args(kind) for word in choices_of(inner)]


def plain(reason: str, choices: list[str]) -> str:
    """A validation error in words that also those understand who do not write Python."""
    if choices and "enum value" in reason:
        wrong = re.search(r"enum value (.*?)( - at |$)", reason)
        said = wrong[1] if wrong else "it"
        return f"{said} is none of {', '.join(word or '(nothing)' for word in choices)}"
    reason = reason.replace("`", "").replace("array", "a list such as [a, b]")
    reason = reason.replace("Object missing required", "it lacks the required")
    reason = reason.replace("Object contains unknown", "it has an unknown")
    reason = reason.replace("object", "key: value pairs")
    reason = re.sub(
        r"str matching regex '\^https.*'",
        "an address such as http://127.0.0.1:7860, with username and password apart from it",
        reason,
    )
    return re.sub(
        r" - at \$\[?(\d*)\]?.*", lambda at: f" (in item {at[1]})" if at[1] else "", reason
    )
