"""For functions of tests whose asserts pytest has rewritten: they call a part of it that a worker
seldom has. Without it a failed assert says the same, in plainer words."""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any


def found() -> Any:
    """That part of pytest where it is installed, else what stands in for it."""
    try:
        return importlib.import_module("_pytest.assertion.rewrite")
    except ImportError:
        return SimpleNamespace(
            _saferepr=lambda value: reprlib.repr(value) if len(repr(value)) > 240 else repr(value),
            _call_reprcompare=_call_reprcompare,
            _format_explanation=_format_explanation,
            _format_assertmsg=lambda said: str(said).replace("%", "%%"),
            _format_boolop=_format_boolop,
            _should_repr_global_name=lambda value: not callable(value),
            _check_if_assertion_pass_impl=lambda: False,
        )


def _call_reprcompare(
    operators: Sequence[str], results: Iterable[object], texts: Sequence[str], _: object
) -> str:
    """Of a chain of comparisons the first that did not hold."""
    for result, text in zip(results, texts, strict=True):
        if not result:
            return text
    return texts[-1]


def _format_explanation(text: str) -> str:
    """Where a value came from stands between braces behind the line that it is in, each brace at
    the start of a line of its own; that line goes on behind them."""
    first, *rest = text.split("\n")
    lines, open_lines = [first], [0]
    for one in rest:
        if one.startswith("}") and len(open_lines) > 1:
            open_lines.pop()
            lines[open_lines[-1]] += one[1:]
            continue
        if one.startswith("{"):
            open_lines.append(len(lines))
            lines.append(f"  where {one[1:]}")
        else:
            open_lines[-1] = len(lines)
            lines.append(one.removeprefix(">").removeprefix("~"))
    return "\n".join(lines)


def _format_boolop(texts: Iterable[str], is_or: bool) -> str:
    return f"({(' or ' if is_or else ' and ').join(texts)})".replace("%", "%%")
