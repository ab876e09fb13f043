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
    from traceback import FrameSummary, StackSummary, TracebackException

    from corral.runtime.channels.redaction import Redactor

Failure = dict[str, Any]

KIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Where `corral` and `cloudpickle` are imported from."""
OURS = os.path.join(KIT, "corral", "")
PICKLED_LIMIT = 64 * 1024
MESSAGE_LIMIT = 16 * 1024
TRACEBACK_LIMIT = 64 * 1024
TYPE_LIMIT = 500
OUT_OF_MEMORY_TYPES = frozenset(
    {"torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"}
)

GPU_ERRORS = (
    "CUDA error",
    "cudaError",
    "CUDA_ERROR_",
    "cuDNN error",
    "HIP error",
    "device-side assert",
    "illegal memory access",
    "unspecified launch failure",
)
"""Words of errors after which a process may get nothing but errors from its GPU."""


class AttemptFailed(Exception):
    """Ends an attempt with this failure. Raised by the runtime, never by user code."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.failure: Failure = {"code": code, "message": clean(message, MESSAGE_LIMIT), **fields}


class TransferFailed(Exception):
    """Bytes could not be moved between the job and the controller."""


def spoils(failure: Failure) -> bool:
    """Whether the process is lost with the attempt: its memory may stay full, or its GPU answers
    every further call with the same error."""
    return failure["code"] == "out_of_memory" or is_gpu_error(failure["message"])


def is_gpu_error(message: str) -> bool:
    return any(words in message for words in GPU_ERRORS)


_redactor: Redactor | None = None


def hide(redactor: Redactor) -> None:
    """Called once in a process whose jobs have secrets: no failure shows their values."""
    global _redactor
    _redactor = redactor


def redacted(failure: Failure, redactor: Redactor) -> Failure:
    """Once more, at the door: hints and causes were added since its parts were cleaned."""
    return {
        key: redactor.text(value) if isinstance(value, str) and key != "pickled" else value
        for key, value in failure.items()
    }


# What follows looks at an exception that user code made, and that may answer each look with
# another one, SystemExit included. So classes are asked of its type, its own attributes are read
# past whatever hides them, and `except BaseException` is meant: a cancel is not lost in it, since
# the attempt is ending anyway.


def clean(text: str, limit: int) -> str:
    """Text that JSON can carry: no lone surrogates, and bounded with the middle left out."""
    text = str.encode(text, "utf-8", "replace").decode()
    if _redactor is not None:
        text = _redactor.text(text)  # before it is cut: half a value would not be known again
    if len(text) <= limit:
        return text
    return (
        f"{text[: limit // 2]}\n… {len(text) - limit} characters left out …\n{text[-limit // 2 :]}"
    )


def from_exception(error: BaseException, *, cancelled: bool = False) -> Failure:
    """The failure that an exception which left user code stands for."""
    if is_a(error, AttemptFailed):
        return error.failure  # type: ignore[attr-defined,no-any-return]
    if is_a(error, SystemExit):
        return _from_exit(error)
    kind = type_name(type(error))
    return {
        "code": "cancelled" if cancelled else _code(error, kind),
        "message": clean(message_of(error), MESSAGE_LIMIT),
        "type": kind,
        "traceback": clean(traceback_of(error), TRACEBACK_LIMIT),
        **pickled(error),
    }


def is_a(error: BaseException, kinds: type | tuple[type, ...]) -> bool:
    """`isinstance` would also ask the exception, for its `__class__`."""
    return issubclass(type(error), kinds)


def cancelled() -> Failure:
    return {"code": "cancelled", "message": "The job was cancelled while it ran."}


def died(exit_code: int, *, cancelled: bool = False, held_bytes: int = 0) -> Failure:
    """The failure of a job process that ended without a word; negative codes are signals. Of a
    killed one it says how much memory it held, at most (see `channels.frames.error_frame`)."""
    if cancelled:
        return {"code": "cancelled", "message": "The job was cancelled and its process ended."}
    if exit_code == 0:
        return {
            "code": "no_result",
            "message": "The job process exited with code 0 before the function returned. "
            "Return from the function instead of ending the process.",
        }
    if exit_code < 0:
        failure = by_signal(-exit_code)
        return {**failure, "held_bytes": held_bytes} if held_bytes else failure
    code, said = "exit_code", f"The job process exited with code {exit_code}."
    if exit_code >= WINDOWS_CRASH:
        what = WINDOWS_CRASHES.get(exit_code, "an error of its native code")
        code, said = "killed_by_signal", f"The job process was ended by {what} (0x{exit_code:08X})."
    return {"code": code, "message": said, "exit_code": exit_code}


WINDOWS_CRASH = 0xC0000000
"""Where Windows has no signals, exit codes from here on stand for what ended a process."""
WINDOWS_CRASHES = {
    0xC0000005: "an access violation, which is a crash in native code, not in Python",
    0xC00000FD: "a stack overflow",
    0xC000013A: "Ctrl-C or Ctrl-Break",
    0xC0000135: "a DLL that was not found",
    0xC0000017: "a lack of memory",
}

SIGNAL_HINTS = {
    "SIGKILL": " The machine ran out of memory, or somebody killed it.",
    "SIGSEGV": " That is a crash in native code, not in Python.",
    "SIGBUS": " That is a crash in native code, or a full /dev/shm.",
    "SIGTERM": " Corral did not send it: the job itself did, or somebody on the machine.",
    "SIGABRT": " Native code gave up; its last output may say why.",
}


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def by_signal(number: int) -> Failure:
    name = signal_name(number)
    return {
        # Nothing in a job sends SIGKILL to itself: it came from outside, and may not come again.
        "code": "process_died" if name == "SIGKILL" else "killed_by_signal",
        "message": f"The job process was ended by {name}.{SIGNAL_HINTS.get(name, '')}",
        "exit_code": -number,
    }


def _from_exit(error: BaseException) -> Failure:
    code = SystemExit.__dict__["code"].__get__(error)
    whole = issubclass(type(code), int)
    shown = {"type": "SystemExit", "traceback": clean(traceback_of(error), TRACEBACK_LIMIT)}
    if code is None or (whole and int.__eq__(code, 0)):
        said = "The function called sys.exit(0) instead of returning, so it has no result. "
        return {"code": "no_result", "message": f"{said}Use return.", **shown}
    number = int.__and__(code, 0xFF) if whole else 1
    # sys.exit("text") prints the text and exits with 1; the text is then the reason.
    reason = "" if whole else f": {message_of(error)}"
    return {
        "code": "exit_code",
        "message": clean(f"The function exited with code {number}{reason}", MESSAGE_LIMIT),
        **shown,
        "exit_code": number,
    }


def _code(error: BaseException, kind: str) -> str:
    if is_a(error, TransferFailed):
        return "transfer_failed"
    if is_a(error, MemoryError) or kind in OUT_OF_MEMORY_TYPES:
        return "out_of_memory"
    return "exception"


def type_name(kind: type[BaseException]) -> str:
    try:
        name = kind.__qualname__
        named = name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"
    except BaseException:
        named = type.__dict__["__qualname__"].__get__(kind)
    return clean(named, TYPE_LIMIT)


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return f"<the message of {type_name(type(error))} cannot be shown: its __str__ failed>"


def traceback_of(error: BaseException) -> str:
    from traceback import StackSummary, TracebackException, walk_tb

    try:
        shown = TracebackException.from_exception(error, compact=True)
        _cut(shown)
        return "".join(shown.format())
    except BaseException:
        stack = StackSummary.extract(
            walk_tb(BaseException.__dict__["__traceback__"].__get__(error))
        )
        stack[:] = _users(stack)
        return f"{''.join(stack.format())}{type_name(type(error))}: {message_of(error)}\n"


def _cut(shown: TracebackException) -> None:
    """Leave out our own frames, above the user's code and below it, in the whole chain."""
    shown.stack[:] = _users(shown.stack)
    for linked in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if linked is not None:
            _cut(linked)


def _users(stack: StackSummary) -> list[FrameSummary]:
    return [part for part in stack if not part.filename.startswith(OURS)]


def pickled(error: BaseException) -> dict[str, str]:
    """The exception itself, where it survives the way there and back."""
    try:
        import pickle

        from corral.runtime import pickled_errors

        data = pickled_errors.dumps(error)
        if len(data) > PICKLED_LIMIT or (_redactor is not None and _redactor.holds(data)):
            return {}
        pickle.loads(data)  # noqa: S301 - our own bytes: would a client be able to?
    except BaseException:
        return {}
    return {"pickled": binascii.b2a_base64(data, newline=False).decode()}
