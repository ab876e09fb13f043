"""Turns a user's call into the message that submits it, checked before anything is sent."""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, TypedDict

from corral import correlation
from corral.contract import corral_pb2 as pb
from corral.core.errors import InvalidJob
from corral.core.job import INLINE_LIMIT, MAX_DURATION_S, QueueClass, gpu_needs
from corral.core.text import seconds
from corral.sdk.files import assets
from corral.sdk.files.assets import Asset
from corral.sdk.submit import requirements

SUBMIT_INLINE_LIMIT = 1024 * 1024
"""Bytes up to this size ride inside a submission; the controller stores them itself."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Filters(TypedDict, total=False):
    """Which jobs a list shows, beside their states."""

    active: bool
    queue_class: str
    worker: str
    batch: str
    labels: Iterable[str]
    """`key=value`, or `key` alone; all of them."""
    user: str
    since: float
    until: float
    """Submitted at or after, and before, in seconds since the epoch."""
    text: str
    """In the name, the id or the failure's message, or the failure's code."""


class Options(TypedDict, total=False):
    """What a job may be given beside its work; the same words everywhere in the SDK."""

    gpus: int | None
    """Whole GPUs."""
    gpu_memory: float | None
    """A share of one GPU, 0.1 to 1.0 in tenths; a whole number above 1 means that many GPUs."""
    vram_gb: float | None
    gpu: str | None
    """What each of its GPUs is called, such as `RTX 4090`."""
    cpus: float | None
    memory_gb: float | None
    worker_labels: Iterable[str] | Mapping[str, str]
    read: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]
    """Paths of the worker that it reads, beyond those that every job reads there."""
    worker: str
    """`auto`, `local`, or a worker's name."""
    models: Iterable[str] | str
    """Names of models that it works with: it runs where they are, best where they are loaded."""
    duration: float | str
    """Seconds after which the job is ended, or a text such as `90s`, `30m`, `1.5h`, `2d`."""
    requirements: Iterable[str] | str | os.PathLike[str]
    python: str
    """Which Python a script runs on, as `3.12`; a function needs that of its caller."""
    env: Mapping[str, str] | None
    queue_class: Literal["interactive", "batch"] | None
    priority: int
    retries: int
    name: str | None
    labels: Mapping[str, str] | None
    user: str | None
    idempotency_key: str | None
    batch: str | None
    fresh: bool
    """A new process, though a warm one might be waiting."""
    correlation_id: str | None
    """A word of yours that log lines, the job's environment and its view carry; made if absent."""
    secrets: Iterable[str] | str
    """Names of secrets that its process finds as variables; `corral secret set` keeps them."""
    notify: str | None
    """A URL that is told when a job fails and when its batch is done."""
    code: Iterable[str | os.PathLike[str] | ModuleType]
    """Which of your own modules, as modules, files or folders, go along with a function, and no
    others; `()`: none. By default what it imports does."""
    inputs: Mapping[str, Asset]
    """Files that its work directory has under these names; `client.put(path)` makes assets."""
    wait: bool | None
    """Whether to wait where no worker could take it now; by default the queue class decides."""


_KNOWN = frozenset(Options.__annotations__)
_ELSEWHERE = {
    "timeout": "duration",
    "time_limit": "duration",
    "gpu_type": "gpu",
    "accelerator_type": "gpu",
    "num_gpus": "gpus",
    "vram": "vram_gb",
    "num_cpus": "cpus",
    "memory": "memory_gb",
    "packages": "requirements",
    "pip": "requirements",
    "environ": "env",
    "env_vars": "env",
    "tags": "labels",
    "max_retries": "retries",
}
"""What others call the same."""


def check_names(options: Mapping[str, Any]) -> None:
    """A misspelt option is a mistake in the program, like any unknown keyword argument."""
    for name in options:
        if name not in _KNOWN:
            close = [_ELSEWHERE[name]] if name in _ELSEWHERE else []
            close = close or difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"there is no job option {name!r}.{hint}")


def arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the function is called with. A text has characters, but nobody means those."""
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise TypeError(f"args is a tuple: write args=({args!r},)")
    if not isinstance(kwargs, Mapping | None):
        raise TypeError(f"kwargs is a dictionary such as {{'epochs': 3}}; got {kwargs!r}")
    return tuple(args), dict(kwargs or {})


def build(options: Mapping[str, Any], *, queue_class: QueueClass, name: str) -> pb.JobSubmission:
    """The submission without its work, or an InvalidJob that says what is wrong."""
    if options:
        return _build(options, queue_class, name)
    message = pb.JobSubmission()
    message.CopyFrom(_plain(queue_class, name))
    return message


@lru_cache(maxsize=256)
def _plain(queue_class: QueueClass, name: str) -> pb.JobSubmission:
    """Most calls ask for nothing special."""
    return _build({}, queue_class, name)


def _build(options: Mapping[str, Any], queue_class: QueueClass, name: str) -> pb.JobSubmission:
    check_names(options)
    given = {key: value for key, value in options.items() if value is not None}
    gpus, tenths = _gpus(given)
    message = pb.JobSubmission(
        gpus=gpus,
        gpu_memory=tenths / 10,
        python=_text(given, "python") or PYTHON,
        vram_gb=_number(given, "vram_gb", 0.0, low=0, high=10_000),
        gpu=_gpu_name(given),
        cpus=_number(given, "cpus", 1.0, low=0.1, high=1024),
        memory_gb=_number(given, "memory_gb", 0.0, low=0, high=100_000),
        duration=_duration(given),
        priority=_whole(given, "priority", low=-100, high=100),
        retries=_whole(given, "retries", low=0, high=100),
        requirements=requirements.resolve(given.get("requirements")),
        worker_labels=_worker_labels(given.get("worker_labels", ())),
        worker=_text(given, "worker") or "auto",
        read=_read(given.get("read", ())),
        models=_names(given, "models", "sdxl_1.0"),
        queue_class=_queue_class(given.get("queue_class", queue_class)),
        name=_text(given, "name") or name,
        env=_texts(given, "env"),
        labels=_texts(given, "labels"),
        user=_text(given, "user"),
        idempotency_key=_text(given, "idempotency_key"),
        batch=_text(given, "batch"),
        fresh=bool(given.get("fresh", False)),
        secrets=_secrets(given.get("secrets", ())),
        notify=_text(given, "notify"),
    )
    if "inputs" in given:
        message.inputs.extend(assets.messages(given["inputs"]))
    if "wait" in given:
        message.wait = bool(given["wait"])
    return message


def correlation_id(options: Mapping[str, Any]) -> str:
    given = options.get("correlation_id")
    if given is None:
        return correlation.new()
    if not isinstance(given, str) or not correlation.usable(given):
        raise InvalidJob(
            f"correlation_id has 1 to {correlation.MAX_LENGTH} letters, digits or ._:/+=@-; got "
            f"{given!r}."
        )
    return given


def rides_along(data: bytes, *, often: bool = False) -> bool:
    """Whether bytes belong into the submission; what many jobs share is worth storing earlier."""
    return len(data) <= (INLINE_LIMIT if often else SUBMIT_INLINE_LIMIT)


def _gpus(given: Mapping[str, Any]) -> tuple[int, int]:
    gpus = _whole(given, "gpus", low=0, high=64)
    share = _number(given, "gpu_memory", 0.0, low=0, high=64)
    if not gpus and share > 1 and share == int(share):
        gpus, share = int(share), 0.0
    return gpu_needs(
        gpus=gpus, gpu_memory=share, vram_gb=given.get("vram_gb"), gpu=_gpu_name(given)
    )


def _gpu_name(given: Mapping[str, Any]) -> str:
    name = given.get("gpu", "")
    if not isinstance(name, str):
        raise InvalidJob(f"gpu is a GPU's name such as 'RTX 4090'; how many is gpus. Got {name!r}.")
    return name


def _number(
    given: Mapping[str, Any], name: str, default: float, *, low: float, high: float
) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidJob(f"{name} is a number; got {value!r}.")
    if not low <= value <= high:
        raise InvalidJob(f"{name} is at least {low:g} and at most {high:g}; got {value:g}.")
    return float(value)


def _duration(given: Mapping[str, Any]) -> float:
    value = given.get("duration")
    if isinstance(value, str):
        given = {"duration": seconds(value, "duration")}
    return _number(given, "duration", 3600.0, low=1, high=MAX_DURATION_S)


def _whole(given: Mapping[str, Any], name: str, *, low: int, high: int) -> int:
    value = _number(given, name, 0, low=low, high=high)
    if value != int(value):
        raise InvalidJob(f"{name} is a whole number; got {value:g}.")
    return int(value)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise InvalidJob(f"{name} is a text; got {value!r}.")
    return value


def _texts(given: Mapping[str, Any], name: str) -> dict[str, str]:
    values = given.get(name, {})
    if not isinstance(values, Mapping):
        raise InvalidJob(f"{name} is a mapping such as {{'KEY': 'value'}}; got {values!r}.")
    for key, value in values.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise InvalidJob(f"{name} has a key that is no name: {key!r}.")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidJob(f"{name}[{key!r}] is a text; got {value!r}.")
    return dict(values)


def _read(paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found = []
    for path in paths:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidJob(f"read has paths such as '~/data'; got {path!r}.")
        found.append(os.path.abspath(os.path.expanduser(path)))
    return found


def _worker_labels(labels: Iterable[str] | Mapping[str, str]) -> list[str]:
    if isinstance(labels, str):
        return [labels]
    if isinstance(labels, Mapping):
        return [f"{key}={value}" for key, value in labels.items()]
    found = list(labels)
    for label in found:
        if not isinstance(label, str) or not label:
            raise InvalidJob(f"A worker label is a text such as 'ssd' or 'zone=a'; got {label!r}.")
    return found


def _names(given: Mapping[str, Any], option: str, example: str) -> list[str]:
    names = given.get(option, ())
    found = [names] if isinstance(names, str) else names
    if isinstance(found, Mapping) or not isinstance(found, Iterable):
        raise InvalidJob(f"{option} is a list of names such as [{example!r}]; got {names!r}.")
    found = list(found)
    for name in found:
        if not isinstance(name, str) or not name.strip():
            raise InvalidJob(f"{option} holds names such as {example!r}; got {name!r}.")
    return found


def _secrets(names: object) -> list[str]:
    """Names alone: whoever gives values would have them in the journal."""
    if isinstance(names, Mapping) or not isinstance(names, Iterable):
        raise InvalidJob("secrets is a list of names such as ['HF_TOKEN']; values are set apart.")
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidJob("secrets holds names such as 'HF_TOKEN', and something else is there.")
    return found


def _queue_class(value: object) -> str:
    try:
        return QueueClass(str(value)).value
    except ValueError:
        raise InvalidJob(f"queue_class is 'interactive' or 'batch'; got {value!r}.") from None
