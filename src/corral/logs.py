"""How Corral's processes log: one line an event, for people or as JSON, on stderr.

A line costs a few microseconds and one system call; nothing is held back, so that what a killed
process said last can be read. Where stderr is the home's log file (`corral up --detach`), the
controller keeps it within its limit and the agent follows it to the new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

# structlog would load all of rich, to draw tracebacks that nobody draws here: the start of a
# controller, and of an agent, waited for that.
sys.modules.setdefault("rich", cast("Any", None))
import structlog  # noqa: E402

if sys.modules["rich"] is None:
    del sys.modules["rich"]

from corral.core.text import printable  # noqa: E402

get_logger = structlog.get_logger

LOOK_BYTES = 1 << 16
"""How much is written between two looks at the size and the name of the file."""
LISTED = 5
"""Items of a list that a terminal shows; files have all of them, to be searched."""

STDERR = 2
_BINARY = getattr(os, "O_BINARY", 0)
"""Windows would make two characters of the end of each line."""
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Sink:
    """Where lines go. What cannot be written is forgotten: a log on a full disk must not end what
    it is the log of."""

    def __init__(self, file: Path | None = None, *, limit: int = 0, rotates: bool = False) -> None:
        self._file = file if file is not None and is_stderr(file) else None
        self._limit, self._rotates = limit, rotates
        self._written = 0

    def write(self, line: bytes) -> None:
        size = len(line)
        try:
            while line:
                line = line[os.write(STDERR, line) :]
            if self._file is not None:
                self._look(size)
        except (OSError, MemoryError):
            return

    msg = debug = info = warning = error = critical = write

    def _look(self, size: int) -> None:
        self._written += size
        if self._written < LOOK_BYTES:
            return
        self._written = 0
        assert self._file is not None
        if not is_stderr(self._file):
            self._open(self._file)  # somebody moved it away
        elif self._rotates and os.fstat(STDERR).st_size > self._limit // 2:
            os.replace(self._file, self._file.with_name(f"{self._file.name}.1"))
            self._open(self._file)

    def _open(self, file: Path) -> None:
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _BINARY, 0o600)
        try:
            os.dup2(fd, STDERR)
        finally:
            os.close(fd)


def is_stderr(file: Path) -> bool:
    """Whether what this process says goes into that file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(file), os.fstat(STDERR))
    return False


class _Clock:
    """The time as text; the part that changes once a second is made once a second."""

    def __init__(self, form: str, to_struct: Callable[[float], time.struct_time]) -> None:
        self._form, self._to_struct = form, to_struct
        self._second, self._text = -1, ""

    def text(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._text = time.strftime(self._form, self._to_struct(now))
            self._second = second
        return f"{self._text}.{int((now - second) * 1e6):06d}"


def _as_json() -> structlog.typing.Processor:
    clock = _Clock("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def render(logger: Any, level: str, said: structlog.typing.EventDict) -> bytes:
        line = {"timestamp": clock.text() + "Z", "level": level, "event": said.pop("event", "")}
        if "exc_info" in said:
            said["exception"] = _exception(said.pop("exc_info"))
        line.update(said)
        return _encode(line) + b"\n"

    return render


def _for_people(*, terminal: bool) -> structlog.typing.Processor:
    clock = _Clock("%Y-%m-%d %H:%M:%S", time.localtime)
    spaced = {level: f"{level:<8}" for level in _COLOURS}
    if terminal:
        spaced = {level: f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" for level, text in spaced.items()}

    def render(logger: Any, level: str, said: structlog.typing.EventDict) -> bytes:
        event = said.pop("event", "")
        exception = _exception(said.pop("exc_info")) if "exc_info" in said else ""
        told = " ".join([f"{key}={_shown(value, terminal)}" for key, value in said.items()])
        line = f"{clock.text()[:-3]} {spaced.get(level, level)} {event:<22} {told}\n"
        if exception:
            line += printable(exception.rstrip("\n")) + "\n"
        return line.encode("utf-8", "replace")

    return render


def _shown(value: object, terminal: bool) -> str:
    if isinstance(value, str):
        plain = value.isprintable() and value and " " not in value
        return value if plain else repr(value)
    if isinstance(value, (list, tuple)):
        words = [str(one) for one in value[: LISTED if terminal else None]]
        if len(words) < len(value):
            words.append(f"… {len(value) - len(words)} more")
        return printable(",".join(words))
    return printable(str(value))


def _exception(told: object) -> str:
    if told is True:
        told = sys.exc_info()[1]
    if isinstance(told, tuple):
        told = told[1]
    if not isinstance(told, BaseException):
        return ""
    return "".join(traceback.format_exception(told))


HUNG_UP = "ExecuteBatchError"
"""What gRPC reports, with its traceback, of a client that went away in the middle of an answer."""


class _Libraries(logging.Handler):
    """What libraries say by Python's own logging, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and type(record.exc_info[1]).__name__ == HUNG_UP:
            return  # thousands may go at once, and it is nobody's mistake
        level = record.levelname.lower()
        told: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        log = structlog.get_logger()
        say = getattr(log, level if level in _COLOURS else "warning")
        say("library_said", logger=record.name, message=message, **told)


class _Road(NamedTuple):
    """Past structlog, for who has many lines at once: rendered one by one, written together."""

    render: structlog.typing.Processor
    sink: Sink
    level: int


_road: _Road | None = None


def inform(lines: Sequence[dict[str, Any]]) -> None:
    """The same as `log.info` with each of these, at a third of the price."""
    if _road is None:
        for line in lines:
            structlog.get_logger().info(**line)
    elif _road.level <= logging.INFO:
        render = _road.render
        _road.sink.write(b"".join([cast(bytes, render(None, "info", line)) for line in lines]))


def configure(
    level: str, form: str, *, file: Path | None = None, limit: int = 0, rotates: bool = False
) -> None:
    """`file` is the home's log file; only where stderr is that file are its bounds kept."""
    sink = Sink(file, limit=limit, rotates=rotates)
    render = _as_json() if form == "json" else _for_people(terminal=os.isatty(STDERR))
    global _road
    _road = _Road(render, sink, getattr(logging, level.upper()))
    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Libraries)]:
        root.removeHandler(handler)
    root.addHandler(_Libraries(logging.WARNING))
