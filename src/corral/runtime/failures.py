"""How an attempt failed, as a failure document (`core.job.Failure` as plain data).

The caller gets the exception's type, message and traceback as if the function had run at home:
Corral's own frames are cut, chained exceptions are kept.
"""

from __future__ import annotations

import binascii
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceback import TracebackException

Failure = dict[str, Any]

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PICKLED_LIMIT = 64 * 1024
MESSAGE_LIMIT = 16 * 1024
TRACEBACK_LIMIT = 64 * 1024
OUT_OF_MEMORY_TYPES = frozenset(
    {"torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"}
)


class AttemptFailed(Exception):
    """Ends an attempt with this failure. Raised by the runtime, never by user code."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.failure: Failure = {"code": code, "message": clean(message, MESSAGE_LIMIT), **fields}


def clean(text: str, limit: int) -> str:
    """Text that JSON can carry: no lone surrogates, and bounded with the middle left out."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= limit:
        return text
    return (
        f"{text[: limit // 2]}\n… {len(text) - limit} characters left out …\n{text[-limit // 2 :]}"
    )


def from_exception(error: BaseException, *, cancelled: bool = False) -> Failure:
    """The failure that an exception which left user code stands for."""
    if isinstance(error, AttemptFailed):
        return error.failure
    if isinstance(error, SystemExit):
        return _from_exit(error)
    kind = type_name(type(error))
    return {
        "code": "cancelled" if cancelled else _code(error, kind),
        "message": clean(message_of(error), MESSAGE_LIMIT),
        "type": kind,
        "traceback": clean(traceback_of(error), TRACEBACK_LIMIT),
        **pickled(error),
    }


def cancelled() -> Failure:
    return {"code": "cancelled", "message": "The job was cancelled while it ran."}


def died(exit_code: int, *, cancelled: bool = False) -> Failure:
    """The failure of a job process that ended without a word; negative codes are signals."""
    if cancelled:
        return {"code": "cancelled", "message": "The job was cancelled and its process ended."}
    if exit_code == 0:
        return {
            "code": "no_result",
            "message": "The job process exited with code 0 before the function returned. "
            "Return from the function instead of ending the process.",
        }
    if exit_code > 0:
        return {
            "code": "exit_code",
            "message": f"The job process exited with code {exit_code}.",
            "exit_code": exit_code,
        }
    return by_signal(-exit_code)


SIGNAL_HINTS = {
    "SIGKILL": " The machine ran out of memory, or somebody killed it.",
    "SIGSEGV": " That is a crash in native code, not in Python.",
    "SIGBUS": " That is a crash in native code, or a full /dev/shm.",
    "SIGABRT": " Native code gave up; its last output may say why.",
}


def by_signal(number: int) -> Failure:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return {
        # Nothing in a job sends SIGKILL to itself: it came from outside, and may not come again.
        "code": "process_died" if name == "SIGKILL" else "killed_by_signal",
        "message": f"The job process was ended by {name}.{SIGNAL_HINTS.get(name, '')}",
        "exit_code": -number,
    }


def _from_exit(error: SystemExit) -> Failure:
    code = error.code
    if code is None or code == 0:
        return {
            "code": "no_result",
            "message": "The function called sys.exit(0) instead of returning, so it has no result. "
            "Use return.",
            "type": "SystemExit",
            "traceback": clean(traceback_of(error), TRACEBACK_LIMIT),
        }
    number = code & 0xFF if isinstance(code, int) else 1
    # sys.exit("text") prints the text and exits with 1; the text is then the reason.
    reason = "" if isinstance(code, int) else f": {message_of(error)}"
    return {
        "code": "exit_code",
        "message": clean(f"The function exited with code {number}{reason}", MESSAGE_LIMIT),
        "type": "SystemExit",
        "traceback": clean(traceback_of(error), TRACEBACK_LIMIT),
        "exit_code": number,
    }


def _code(error: BaseException, kind: str) -> str:
    code = getattr(error, "corral_code", None)
    if isinstance(code, str):
        return code
    if isinstance(error, MemoryError) or kind in OUT_OF_MEMORY_TYPES:
        return "out_of_memory"
    return "exception"


def type_name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<the message of {type(error).__name__} cannot be shown: its __str__ failed>"


def traceback_of(error: BaseException) -> str:
    from traceback import TracebackException

    try:
        shown = TracebackException.from_exception(error, compact=True)
        _cut(shown)
        return "".join(shown.format())
    except Exception:
        return f"{type_name(type(error))}: {message_of(error)}\n"


def _cut(shown: TracebackException) -> None:
    """Leave out our own frames, above the user's code and below it, in the whole chain."""
    shown.stack[:] = [part for part in shown.stack if not part.filename.startswith(OURS)]
    for linked in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if linked is not None:
            _cut(linked)


def pickled(error: BaseException) -> dict[str, str]:
    """The exception itself, where it survives the way there and back."""
    try:
        import pickle

        import cloudpickle

        data = cloudpickle.dumps(error)
        if len(data) > PICKLED_LIMIT:
            return {}
        pickle.loads(data)  # noqa: S301 - our own bytes: would a client be able to?
    except BaseException:
        return {}
    return {"pickled": binascii.b2a_base64(data, newline=False).decode()}
