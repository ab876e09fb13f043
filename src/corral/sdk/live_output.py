"""Where the output of a job that somebody waits for goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

from corral.contract import views
from corral.sdk.handles import Text

Sink = Literal["print"] | Callable[[str, str], object] | None
"""Where live output goes: this process's own streams, a callable `(stream, text)`, or nowhere."""


def shower(output: Sink) -> Callable[[views.Output], None]:
    text = Text()
    if output is None:
        return lambda _: None
    if callable(output):
        sink = output
        return lambda event: (sink(event.stream, text(event)), None)[1]
    if output != "print":
        raise TypeError(f"output is 'print', None or a callable (stream, text); got {output!r}")

    def show(event: views.Output) -> None:
        target = sys.stderr if event.stream == "stderr" else sys.stdout
        target.write(text(event))
        target.flush()

    return show
