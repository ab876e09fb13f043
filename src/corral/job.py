"""What a job can say and ask while it runs: `from corral import job`.

Standard library only, in every environment. Outside a job each call is harmless, so the same
function runs at home: progress goes nowhere, `cancelled()` is False, `restore()` gives the default.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from corral.runtime.channels.loopback import Words
    from corral.runtime.files.checkpoint_sender import CheckpointSender
    from corral.runtime.files.transfer import Transfer

__all__ = [
    "Cancelled",
    "artifact",
    "attempt",
    "cancelled",
    "checkpoint",
    "id",
    "metric",
    "model",
    "output_dir",
    "progress",
    "restore",
]

LINE_LIMIT = 4096
"""A pipe takes lines up to this size in one piece, whoever else writes at the same time."""
MESSAGE_LIMIT = 500
NAME_LIMIT = 512
METRIC_NAME_LIMIT = 100
ROUNDING = 0.001
"""How far a sum of fractions may miss 0 or 1."""


class Cancelled(BaseException):
    """Raised inside a function whose job was cancelled, unless it asks `cancelled()` itself.

    Not an Exception, so that `except Exception` does not swallow it.
    """


def progress(fraction: float | None, message: str = "") -> None:
    """Say how far the job is, from 0 to 1 (None: unknown), and what it is doing.

    Beyond either end it is brought back to that end: no work is ended for its progress bar.
    """
    number = None if fraction is None else _share(fraction)
    _say("progress", fraction=number, message=str(message)[:MESSAGE_LIMIT])


def _share(fraction: Any) -> float | None:
    try:
        number = float(fraction)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if number == number and -ROUNDING <= number <= 1 + ROUNDING:
        return min(max(number, 0.0), 1.0)
    if not _state.told_of_progress:
        _state.told_of_progress = True
        with suppress(Exception):  # whatever the job made of its stderr, or of repr
            print(
                f"corral: job.progress takes a fraction, 0 to 1; got {fraction!r:.100}. Divide by "
                "the total first. The job goes on.",
                file=sys.stderr,
            )
    return None if number != number else min(max(number, 0.0), 1.0)


def metric(
    values: Mapping[str, float] | str | None = None,
    value: float | None = None,
    /,
    step: int | None = None,
    **named: float,
) -> None:
    """Report numbers: `metric(loss=0.1, step=3)`, `metric("loss", 0.1)` or `metric({"loss": 0.1})`.

    What is not finite is told too: a loss of NaN says that a training diverged.
    """
    if isinstance(values, str):
        if value is None:
            raise TypeError(f"job.metric({values!r}) needs a value, as in job.metric('loss', 0.1).")
        named[values] = value
    elif values is not None:
        named.update(values)
    numbers = {str(name)[:METRIC_NAME_LIMIT]: float(number) for name, number in named.items()}
    whole = None if step is None else int(step)
    names = list(numbers)
    # A few per line, so that any number of metrics fits.
    for start in range(0, len(names), 5):
        part = {name: numbers[name] for name in names[start : start + 5]}
        _say("metric", values=part, step=whole)


def artifact(path: str | os.PathLike[str], name: str | None = None) -> None:
    """Keep this file with the job under `name` (its file name, or its path in the output folder).

    Returns when the controller has it; OSError when it does not take it, as too large.
    """
    file = os.path.abspath(os.fspath(path))
    if not os.path.isfile(file):
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r} to keep as an artifact.")
    if name is None:
        folder = os.environ.get("CORRAL_OUTPUT_DIR", "")
        inside = bool(folder) and file.startswith(os.path.join(folder, ""))
        name = os.path.relpath(file, folder) if inside else os.path.basename(file)
    name = _artifact_name(name)
    if not _inside():
        return
    from corral.runtime.files.transfer import TransferRefused

    with open(file, "rb") as body:
        about = os.fstat(body.fileno())
        try:
            sha256, size = _transfer().put_artifact(name, body, about.st_size)
        except TransferRefused as error:
            raise OSError(str(error)) from error
    _state.kept[file] = (about.st_size, about.st_mtime_ns)
    _say("artifact", name=name, size=size, file_sha256=sha256)


def checkpoint(obj: Any) -> None:
    """Keep `obj` as the point from which a retry goes on, here or on another worker.

    Returns when it is taken: it is sent while the job goes on, and at the latest before the job
    ends. A later checkpoint replaces it. What went wrong with an earlier one is raised here.
    """
    if _inside():
        _sender().take(obj, _pickler().dump)


def restore(default: Any = None) -> Any:
    """The job's last checkpoint, of this attempt or of an earlier one; `default` if it has none."""
    if _state.sender is not None:
        _state.sender.finish()
    sha256 = _state.checkpoint or os.environ.get("CORRAL_CHECKPOINT", "")
    if not _inside() or not sha256:
        return default
    import pickle
    import tempfile

    from corral.runtime.files.transfer import NotThere

    with tempfile.TemporaryFile() as body:
        try:
            _transfer().checkpoint(sha256, body)
        except NotThere:
            return default
        body.seek(0)
        _pickler()  # Unpickling what cloudpickle wrote needs cloudpickle.
        return pickle.load(body)  # noqa: S301 - this job wrote it


def cancelled() -> bool:
    """Whether somebody cancelled the job. From the first call on the job is expected to ask now
    and then and to end by itself; it gets no `Cancelled` exception."""
    if not _inside():
        return False
    state = _state
    if not state.asks:
        state.asks = True
        if state.look is None:
            _listen()
    if not state.cancelled and state.look is not None and state.owner == os.getpid():
        state.cancelled = state.look()
    return state.cancelled


def model(name: str) -> Path:
    """Where this worker has a model: its file, or its folder. A job that names it in `models` runs
    only where there is one."""
    for found in _models(name):
        return found
    raise FileNotFoundError(
        f"There is no model {name!r} here. Name it in models=[…], and the job runs where it is."
    )


def output_dir() -> Path:
    """The folder whose files become artifacts; outside a job the current folder."""
    from pathlib import Path

    return Path(os.environ.get("CORRAL_OUTPUT_DIR") or os.getcwd())


def id() -> str:
    """The id of the job; empty outside a job."""
    return os.environ.get("CORRAL_JOB_ID", "")


def attempt() -> int:
    """Which try of the job this is, from 1; 1 outside a job."""
    return int(os.environ.get("CORRAL_ATTEMPT") or 1)


# --- how it works ------------------------------------------------------------------------------


def _models(name: str) -> Iterator[Path]:
    """All that have the name; the first one counts."""
    from pathlib import Path

    from corral.runtime.files.models import model_name, models_in

    wanted = model_name(name)
    for folder in filter(None, os.environ.get("CORRAL_MODEL_PATHS", "").split(os.pathsep)):
        for found in models_in(folder):
            if found.name == wanted:
                yield Path(found.root or found.files[0])


class _State:
    """Beyond the environment variables. The runner makes a fresh one for each attempt; processes
    that a job starts keep the first one."""

    def __init__(self, look: Callable[[], bool] | None = None) -> None:
        self.look = look
        self.owner = os.getpid()
        self.asks = False
        self.cancelled = False
        self.checkpoint = ""
        self.kept: dict[str, tuple[int, int]] = {}
        self.sender: CheckpointSender | None = None
        self.transfers: dict[int, Transfer] = {}
        self.frames_fd: int | None = None
        self.words: Words | None = None
        self.told_of_progress = False


_state = _State()


def _begin(look: Callable[[], bool]) -> _State:
    """Called by the runner in its own process at the start of each attempt."""
    global _state
    if _state.words is not None:
        _state.words.close()
    _state = _State(look)
    return _state


def _inside() -> bool:
    return "CORRAL_JOB_ID" in os.environ


def _listen() -> None:
    """A script is cancelled by a signal, and only the main thread may handle signals."""
    import threading

    if threading.current_thread() is threading.main_thread():

        def note(*_: object) -> None:
            _state.cancelled = True

        if sys.platform == "win32":
            signal.signal(signal.SIGBREAK, note)
        else:
            signal.signal(signal.SIGTERM, note)


def _after_fork() -> None:
    """A forked child does not read the agent's lines and shares no connection with its parent."""
    _state.look = None
    _state.asks = False
    _state.transfers = {}
    _state.sender = None
    _state.words = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _say(kind: str, **fields: Any) -> None:
    fd = _frames_fd()
    spawned = os.environ.get("CORRAL_WORDS", "") if fd < 0 else ""
    if fd < 0 and not spawned:
        return
    # Names and messages are bounded so that the line always fits.
    line = json.dumps({"frame": kind, **fields}, separators=(",", ":"), ensure_ascii=False)
    data = line.encode("utf-8", "replace") + b"\n"
    assert len(data) <= LINE_LIMIT
    try:
        if spawned:
            _words(spawned).say(data)
        else:
            os.write(fd, data)
    except OSError:
        return


def _frames_fd() -> int:
    """The pipe to the runner, or -1. A child may have the variable without the pipe, and under
    its number an innocent file: the pipe is known by its inode."""
    fd = _state.frames_fd
    if fd is None:
        fd = -1
        named = os.environ.get("CORRAL_FRAMES_FD", "")
        if named.isdigit():
            try:
                found = str(os.fstat(int(named)).st_ino)
            except OSError:
                found = ""
            if found and found == os.environ.get("CORRAL_FRAMES_INODE", found):
                fd = int(named)
        _state.frames_fd = fd  # only now: other threads, and a fork, see what was found or nothing
    return fd


def _words(address: str) -> Words:
    if _state.words is None:
        from corral.runtime.channels.loopback import Words

        _state.words = Words(address)
    return _state.words


def _transfer() -> Transfer:
    """This thread's way to the controller: a connection serves one request at a time."""
    found = _state.transfers.get(get_ident())
    if found is None:
        from corral.runtime.files.transfer import RETRY_FOR_S, Transfer

        environ = os.environ
        found = Transfer(
            environ["CORRAL_URL"],
            environ["CORRAL_TRANSFER_TOKEN"],
            id(),
            attempt(),
            certificate=environ.get("CORRAL_CERTIFICATE", ""),
            artifacts=environ.get("CORRAL_ARTIFACTS", ""),
            patience_s=float(environ.get("CORRAL_PATIENCE_S") or RETRY_FOR_S),
        )
        _state.transfers[get_ident()] = found
    return found


def _sender() -> CheckpointSender:
    if _state.sender is None:
        from corral.runtime.files.checkpoint_sender import CheckpointSender, load_all

        load_all(secure=os.environ["CORRAL_URL"].startswith("https:"))
        # A child that was forked may end without a word (`os._exit`): nobody waits for it then.
        beside = _state.owner == os.getpid()
        _state.sender = CheckpointSender(_send_checkpoint, beside=beside)
    return _state.sender


def _send_checkpoint(body: IO[bytes], size: int) -> None:
    _state.checkpoint, size = _transfer().put_checkpoint(body, size)
    _say("checkpoint", sha256=_state.checkpoint, size=size)


def _pickler() -> Any:
    try:
        import cloudpickle
    except ImportError:
        import pickle

        return pickle
    return cloudpickle


def _artifact_name(name: str) -> str:
    """A relative name with forward slashes that stays inside the job, and tells no secret."""
    for secret in filter(None, os.environ.get("CORRAL_SECRETS", "").split(",")):
        value = os.environ.get(secret, "")
        if value and value in name:
            raise ValueError(
                f"An artifact's name holds the value of the secret {secret}; use another name."
            )
    shown = name.replace("\\", "/") if sys.platform == "win32" else name
    if (
        len(shown) > NAME_LIMIT
        or "\\" in shown
        or not shown.isprintable()  # Bytes that are no UTF-8 are not, either.
        or not {"", ".", ".."}.isdisjoint(shown.split("/"))
    ):
        raise ValueError(
            f"{name[:80]!r} cannot be an artifact's name: use a relative path of at most "
            f"{NAME_LIMIT} printable characters without backslashes and '..'."
        )
    return shown
