"""The one place that chooses between the two kinds of system. Both modules have these names."""

import sys

if sys.platform == "win32":
    from corral.runtime.process.windows import (
        OWN_GROUP,
        READ_NO_LINK,
        SIGNALS,
        ask_to_end,
        children_left,
        flush_c,
        hold_descendants,
        interrupt,
        kill_descendants,
        make_blocking,
    )
else:
    from corral.runtime.process.posix import (
        OWN_GROUP,
        READ_NO_LINK,
        SIGNALS,
        ask_to_end,
        children_left,
        flush_c,
        hold_descendants,
        interrupt,
        kill_descendants,
        make_blocking,
    )

__all__ = [
    "OWN_GROUP",
    "READ_NO_LINK",
    "SIGNALS",
    "ask_to_end",
    "children_left",
    "flush_c",
    "hold_descendants",
    "interrupt",
    "kill_descendants",
    "make_blocking",
]
