"""What a runner is told of an attempt: its order, and the cancel that may follow. Declared once,
for whoever sends one and for the runner, which has only the standard library.

Whoever sends encodes with msgspec (`corral.agent.runners.orders`), so that the document
goes in as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from corral.runtime.channels.frames import decode


class OrderBytes(TypedDict):
    """Bytes known by their digest, as `core.job.Blob`; `data` is base64 where they ride along."""

    sha256: str
    size: int
    data: NotRequired[str | None]


class FunctionWork(TypedDict):
    type: Literal["function"]
    function: OrderBytes
    arguments: OrderBytes


class ScriptWork(TypedDict):
    type: Literal["script"]
    package: OrderBytes
    entry: str
    argv: NotRequired[list[str]]


class PipelineWork(TypedDict):
    type: Literal["pipeline"]
    record: dict[str, Any]


Work = FunctionWork | ScriptWork | PipelineWork


class Document(TypedDict):
    """What a runner reads of a job document, `core.job.Job`."""

    work: Work
    env: NotRequired[dict[str, str]]


AnyDocument = TypeVar("AnyDocument")
"""`Document` where it is read; where it is sent, whatever the encoder passes on untouched."""


@dataclass(slots=True)
class Endpoint:
    """How attempts reach the controller, and where their artifacts go."""

    url: str = ""
    certificate: str = ""
    """A file with the only certificate that the controller may show."""
    artifacts: str = ""
    """`bucket`, a folder of the shared root, or empty: to the controller."""
    patience_s: float | None = None
    """For how long a transfer is tried; None for the usual time."""


@dataclass(slots=True)
class Renderer:
    """What image jobs are told of the worker that they run on."""

    worker: str
    driver: str
    backends: list[dict[str, Any]]
    """Options by which each is opened, the preferred one first."""


@dataclass(slots=True)
class Order(Generic[AnyDocument]):
    """One attempt, for the runner that is to run it."""

    job: str
    attempt: int
    document: AnyDocument
    endpoint: Endpoint
    token: str
    """Good for this attempt's transfers alone."""
    work_dir: str
    checkpoint: str = ""
    correlation_id: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    """Where its input files are on this machine, by the names that the job knows."""
    renderer: Renderer | None = None
    """Of image jobs alone."""


@dataclass(slots=True)
class Cancel:
    job: str
    attempt: int
    cancel: Literal[True] = True


def decode_order(line: bytes) -> Order[Document]:
    told = decode(line)
    told["endpoint"] = _made(Endpoint, told["endpoint"])
    if told.get("renderer") is not None:
        told["renderer"] = _made(Renderer, told["renderer"])
    order: Order[Document] = _made(Order, told)
    return order


def decode_cancel(line: bytes) -> Cancel:
    return _made(Cancel, decode(line))


Told = TypeVar("Told")


def _made(kind: type[Told], told: dict[str, Any]) -> Told:
    """Fields that this side does not know yet are passed over, as on the wire to workers."""
    try:
        return kind(**told)
    except TypeError:
        known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
        if told.keys() <= known:
            raise
        return kind(**{name: value for name, value in told.items() if name in known})
