"""The exception that ended a script: told by its process, read by the one that started it.

The script may write there what it likes: it is a failure of its own, in words of its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from corral.runtime import failures, hints
from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.runtime.failures import Failure
    from corral.runtime.hints import Bounds

VARIABLE, SEEN, HURRY = "CORRAL_SCRIPT", "CORRAL_SEEN_PATHS", "CORRAL_HURRY"
MOST_BYTES = 4 * (failures.MESSAGE_LIMIT + failures.TRACEBACK_LIMIT)
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def environ(path: str, bounds: Bounds) -> dict[str, str]:
    """What a script finds to tell its end by, in a file at this path."""
    paths = (SITE, os.environ.get("PYTHONPATH", ""))
    return {
        VARIABLE: json.dumps([path, bounds]),
        SEEN: "\n".join((*bounds.reads, *bounds.writes)) if bounds.files else "",
        "PYTHONPATH": os.pathsep.join(one for one in paths if one),
    }


def tell(asked: str, error: BaseException) -> None:
    """In the script's process, behind the traceback that Python printed; `asked` is what it found
    in its environment."""
    if not failures.is_a(error, Exception):
        return
    path, bounds = json.loads(asked)
    failure = failures.from_exception(error)
    failure.pop("pickled", None)
    hint = hints.of(error, hints.Bounds(*bounds))
    if hint:
        print(f"corral: {hint}", file=sys.stderr, flush=True)
        failure["message"] = hints.joined(failure["message"], hint)
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        json.dump(failure, file)


def told(path: str) -> Failure | None:
    """In the process that waited for it; None where it ended in another way."""
    try:
        with open(os.open(path, system.READ_NO_LINK), "rb") as file:
            found = json.loads(file.read(MOST_BYTES))
        words = {
            "message": failures.clean(found["message"], failures.MESSAGE_LIMIT),
            "type": failures.clean(found["type"], failures.TYPE_LIMIT),
            "traceback": failures.clean(found["traceback"], failures.TRACEBACK_LIMIT),
        }
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    code = "out_of_memory" if found.get("code") == "out_of_memory" else "exit_code"
    return {"code": code, **words}
