"""A function call: fetch, unpickle, run, pickle the result."""

from __future__ import annotations

import binascii
import gc
import hashlib
import pickle
import re
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import cloudpickle

from corral.runtime import hints
from corral.runtime.failures import AttemptFailed, message_of, pickled, traceback_of, type_name
from corral.runtime.process import main_module

if TYPE_CHECKING:
    from corral.runtime.cancellation import Cancellation
    from corral.runtime.channels.redaction import Redactor
    from corral.runtime.files.transfer import Transfer
    from corral.runtime.order import FunctionWork, OrderBytes
    from corral.runtime.process.main_module import CallersMain

INLINE_LIMIT = 8 * 1024
"""The same as `core.job.INLINE_LIMIT`; the runtime has only the standard library."""
CACHED_FUNCTIONS = 256
CACHED_BYTES = 1 << 30
LARGE = 4 * 1024 * 1024

_LACKING = re.compile(r"on <module '([\w.]+)'")
BROKEN = (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError)
# Of these pickle makes the same bytes as cloudpickle, in a tenth of the time.
PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class Functions:
    """Functions this process has unpickled, by the digest of their bytes. The latest one is
    always kept, so that a map over a function of any size loads it once."""

    def __init__(self, cancellation: Cancellation, memory_bytes: int) -> None:
        self._cancellation = cancellation
        self._known: dict[str, tuple[Callable[..., Any], CallersMain | None]] = {}
        self._sizes: dict[str, int] = {}
        self.own_code = ""
        """The folder with the modules that they name; empty where they name none."""
        # What is kept counts as memory of the attempts that come after.
        self._room = min(CACHED_BYTES, memory_bytes // 4 or CACHED_BYTES)

    def call(
        self,
        work: FunctionWork,
        transfer: Callable[[], Transfer],
        started: Callable[[], None],
    ) -> bytes:
        """Run the call; the pickled result. Whatever user code raises comes through."""
        named = work["function"]["sha256"]
        known = self._known.get(named)
        code = blob_bytes(work["function"], transfer, kept=True) if known is None else b""
        arguments = blob_bytes(work["arguments"], transfer)
        started()
        if known is None:
            self._make_room(len(code))
            loaded = self._load(code, "function")
            known = self._known[named] = loaded, main_module.main_of(loaded)
            self._sizes[named] = len(code)
            del code, loaded  # A large one would stay for as long as the function runs.
        function, main = known
        args, kwargs = self._load(arguments, "arguments")
        main_module.enter(main_module.with_classes(main) if b"__main__" in arguments else main)
        value = function(*args, **kwargs)
        if type(value) is CoroutineType:
            value = self._await(value)
        return _dump(value)

    def _make_room(self, size: int) -> None:
        """Let the oldest go, before the next is loaded: both may not fit the job's memory."""
        freed, held = 0, sum(self._sizes.values())
        while self._known and (
            len(self._known) >= CACHED_FUNCTIONS or held - freed + size > self._room
        ):
            oldest = next(iter(self._known))
            del self._known[oldest]
            freed += self._sizes.pop(oldest)
        if freed > LARGE:
            gc.collect()  # A function that names itself is a cycle.

    def _load(self, data: bytes, what: str) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301 - running the client's code is what a job is
        except Exception as error:
            if self.own_code and _passed_through(error, self.own_code):
                raise  # A module that could not be imported: what it raised says most.
            if isinstance(error, (ImportError, AttributeError)):
                raise _missing(error, what, self.own_code) from error
            if isinstance(error, BROKEN):
                raise _broken(error, what) from error
            raise

    def _await(self, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        import asyncio

        async def main() -> Any:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancellation.stop_task = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                return await coroutine
            finally:
                self._cancellation.stop_task = None

        return asyncio.run(main())


def refuse_secrets(data: bytes, redactor: Redactor) -> None:
    """A result is kept and shown to whoever may read the job: it must not hold a secret."""
    if name := redactor.holds(data):
        raise AttemptFailed(
            "secret_in_result",
            f"The result holds the value of the secret {name}, so it was not kept. Return "
            "something without it.",
        )


def result_bytes(data: bytes, transfer: Callable[[], Transfer]) -> OrderBytes:
    """A result as the last frame tells it; a large one is uploaded first."""
    if len(data) > INLINE_LIMIT:
        from corral.runtime.files.transfer import TransferRefused

        try:
            sha256, size = transfer().put_result(data)
        except TransferRefused as error:
            raise AttemptFailed("result_refused", str(error)) from None
        return {"sha256": sha256, "size": size}
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "data": binascii.b2a_base64(data, newline=False).decode(),
    }


def blob_bytes(blob: OrderBytes, transfer: Callable[[], Transfer], *, kept: bool = False) -> bytes:
    """The bytes of a blob: fetched, and proven then; or they ride along in the document, whose own
    digest was proven on its way here. What is `kept` by its digest is proven all the same."""
    inline = blob.get("data")
    if inline is None:
        return transfer().package_bytes(blob["sha256"])
    data = binascii.a2b_base64(inline)
    if kept and hashlib.sha256(data).hexdigest() != blob["sha256"]:
        raise AttemptFailed(
            "transfer_failed", "The bytes in the job document do not have the sha256 it names."
        )
    return data


def _passed_through(error: BaseException, folder: str) -> bool:
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename.startswith(folder):
            return True
        place = place.tb_next
    return False


def _broken(error: Exception, what: str) -> AttemptFailed:
    return AttemptFailed(
        "bad_package",
        f"The {what} of the job cannot be unpickled: {message_of(error)}. "
        "Client and worker need the same Python version; submit the job again from there.",
        **_shown(error),
    )


def _missing(error: ImportError | AttributeError, what: str, own_code: str) -> AttemptFailed:
    """Something the pickle refers to by name is not installed here."""
    said = message_of(error)
    module = getattr(error, "name", None) if isinstance(error, ImportError) else None
    named = f"the module {module!r}" if module else "something it refers to"
    if module is None and (place := _LACKING.search(said)):
        module = place[1]
    top = str(module or "").partition(".")[0]
    hint = hints.about_module(top, own_code=own_code) if top else ""
    needs = "need" if what.endswith("s") else "needs"
    return AttemptFailed(
        "exception",
        f"The {what} of the job {needs} {named}, which this worker's environment does not have "
        f"({said}). {hint}".rstrip(),
        **_shown(error),
        **pickled(error),
    )


def _dump(value: Any) -> bytes:
    try:
        if type(value) in PLAIN:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        data: bytes = cloudpickle.dumps(value)
        return data
    except MemoryError:
        raise
    except Exception as error:
        raise AttemptFailed(
            "unpicklable_result",
            f"The function returned a {type(value).__qualname__}, which cannot be pickled: "
            f"{message_of(error)}. Return plain data, or save it with job.artifact(path).",
            **_shown(error),
        ) from error


def _shown(error: BaseException) -> dict[str, str]:
    return {"type": type_name(type(error)), "traceback": traceback_of(error)}
