"""Frames: one JSON object per line, by which a runner tells the agent of output, words and ends."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.runtime.channels.redaction import Redactor
    from corral.runtime.failures import Failure

CHUNK = 64 * 1024
COALESCE_S = 0.02
"""Small pieces of output are framed together at most this often."""
SURVIVED = 70
"""The exit code of a supervisor where something that the job started could not be ended."""

# Bytes of the page that both processes of a runner see.
STATE, WAITING, CANCEL, PUMPING = 0, 1, 2, 3
IDLE, RUNNING, ENDING = 0, 1, 2

_quote = json.encoder.encode_basestring
encode: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_read = json.JSONDecoder().raw_decode


def decode(line: bytes) -> Any:
    """`json.loads` looks for other encodings and spaces first, which is a third of its time."""
    return _read(line.decode())[0]


def frame(kind: str, **fields: Any) -> bytes:
    return encode({"frame": kind, **fields}).encode() + b"\n"


STARTED = frame("started")
FETCHING = frame("fetching")


def error_frame(failure: Failure, *, retire: bool) -> bytes:
    """The last frame of an attempt that failed. `retire`: the runner takes no other. What its
    process held is for whoever holds the runner: it knows how much there is."""
    if "held_bytes" not in failure:
        return frame("error", failure=failure, retire=retire)
    told = {name: value for name, value in failure.items() if name != "held_bytes"}
    return frame("error", failure=told, retire=retire, held_bytes=failure["held_bytes"])


def output_frame(stream: str, data: bytes) -> bytes:
    try:
        return f'{{"frame":"output","stream":"{stream}","text":{_quote(data.decode())}}}\n'.encode()
    except UnicodeDecodeError:
        text = binascii.b2a_base64(data, newline=False).decode()
        return f'{{"frame":"output","stream":"{stream}","data":"{text}"}}\n'.encode()


def stderr_frame(words: str, redactor: Redactor | None) -> bytes:
    """Words of the runtime itself, among the output of the job."""
    data = words.encode("utf-8", "replace")
    return output_frame("stderr", redactor.data(data) if redactor else data)


# --- the job's own words: a job may write anything there, so only what is well formed passes ------


def words_to_frames(data: bytes, redactor: Redactor | None = None) -> list[bytes]:
    """Frames for the lines that `corral.job` wrote, in their order. Of progress lines that follow
    one another the last one wins."""
    frames: list[bytes] = []
    before = ""
    for line in data.splitlines():
        try:
            word = json.loads(line)
            checked = _CHECKS[word["frame"]](word)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
        kind = word["frame"]
        if redactor is not None:
            checked = redactor.plain(checked)
        if kind == "metric":
            checked["values"] = {name: _spelled(one) for name, one in checked["values"].items()}
        if kind == before == "progress":
            frames.pop()
        frames.append(frame(kind, **checked))
        before = kind
    return frames


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.encode("utf-8", "replace").decode()


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 53:
        raise TypeError
    return value


def _number(value: Any) -> float:
    number = float(value)
    if number - number != 0:
        raise ValueError
    return number


def _spelled(number: float) -> float | str:
    """JSON has no numbers that are not finite: as `MetricValue` of `core.frames` has them."""
    if number - number == 0:
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def _progress(word: dict[str, Any]) -> dict[str, Any]:
    fraction = word.get("fraction")
    return {
        "fraction": None if fraction is None else min(max(_number(fraction), 0.0), 1.0),
        "message": _text(word.get("message", "")),
    }


def _metric(word: dict[str, Any]) -> dict[str, Any]:
    step = word.get("step")
    values = {_text(name): float(value) for name, value in word["values"].items()}
    return {"values": values, "step": None if step is None else _whole(step)}


def _artifact(word: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": _text(word["name"]),
        "size": _whole(word["size"]),
        "file_sha256": _text(word["file_sha256"]),
    }


def _checkpoint(word: dict[str, Any]) -> dict[str, Any]:
    return {"sha256": _text(word["sha256"]), "size": _whole(word["size"])}


_CHECKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "progress": _progress,
    "metric": _metric,
    "artifact": _artifact,
    "checkpoint": _checkpoint,
}
