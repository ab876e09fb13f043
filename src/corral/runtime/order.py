"""What a runner is told of an attempt: its order, and the cancel that may follow.

Typed dicts, because a runner has only the standard library; it passes over what it does not know.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar


class OrderBytes(TypedDict):
    """Bytes known by their digest, as `core.job.Blob`; `data` is base64 where they ride along."""

    sha256: str
    size: int
    data: NotRequired[str | None]


class FunctionWork(TypedDict):
    type: Literal["function"]
    function: OrderBytes
    arguments: OrderBytes
    code: NotRequired[OrderBytes]


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


class Endpoint(TypedDict):
    """How attempts reach the controller, and where their artifacts go."""

    url: str
    certificate: NotRequired[str]
    """A file with the only certificate that the controller may show."""
    artifacts: NotRequired[str]
    """`bucket`, a folder of the shared root, or none: to the controller."""
    patience_s: NotRequired[float]
    """For how long a transfer is tried, where that is not the usual time."""


class Renderer(TypedDict):
    """What image jobs are told of the worker that they run on."""

    worker: str
    driver: str
    backends: list[dict[str, Any]]
    """Options by which each is opened, the preferred one first."""


class Order(TypedDict, Generic[AnyDocument]):
    """One attempt, for the runner that is to run it."""

    job: str
    attempt: int
    document: AnyDocument
    endpoint: Endpoint
    token: str
    """Good for this attempt's transfers alone."""
    work_dir: str
    checkpoint: NotRequired[str]
    correlation_id: NotRequired[str]
    inputs: NotRequired[dict[str, str]]
    """Where its input files are on this machine, by the names that the job knows."""
    code: NotRequired[str]
    """Where the zip of a function's own modules is on this machine."""
    renderer: NotRequired[Renderer]
    """Of image jobs alone."""


class Cancel(TypedDict):
    job: str
    attempt: int
    cancel: Literal[True]
