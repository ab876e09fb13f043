"""What this process is handed, and the order that it fetches. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from corral.runtime.order import Renderer

VARIABLE = "CORRAL_TICKET"


@dataclass(frozen=True, slots=True)
class AttemptTicket:
    """All that is handed to a process that runs one attempt by itself."""

    url: str
    job: str
    attempt: int
    token: str
    """For its order and its messages; jobs get another one, for their transfers."""
    certificate: str = ""
    """A file with the only certificate that the controller may show."""
    folder: str = ""
    """Where it makes its run directory and keeps environments; empty: in its user's cache."""
    isolate: bool = True
    spawn: bool = False
    read_paths: tuple[str, ...] = ()
    write_paths: tuple[str, ...] = ()
    model_paths: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    """The GPUs that the job sees; None: those that the process sees."""
    renderer: Renderer | None = None
    """None: it renders no images."""

    def __repr__(self) -> str:
        return f"AttemptTicket(job={self.job!r}, attempt={self.attempt!r}, …)"


@dataclass(frozen=True, slots=True)
class AttemptOrder:
    """What it asks for first."""

    job: str
    attempt: int
    document: Any
    """The job document, as it was submitted."""
    digest: str
    token: str
    """Good for this attempt's transfers alone."""
    needs: Any
    duration_s: float
    checkpoint: str = ""
    correlation_id: str = ""
    artifacts: str = ""
    """`bucket`, or empty: to the controller."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Values of the secrets that the job names: for its process alone, never for a log."""

    def __repr__(self) -> str:
        return f"AttemptOrder(job={self.job!r}, attempt={self.attempt!r}, …)"


Kind = TypeVar("Kind")


def decode(kind: type[Kind], data: str | bytes) -> Kind:
    """Fields that this side does not know are passed over."""
    told = json.loads(data)
    known = (one.name for one in fields(kind))  # type: ignore[arg-type]
    return kind(**{name: told[name] for name in known if name in told})


def taken() -> AttemptTicket:
    """From the file that the command line names, or from the environment, and gone from there:
    what is started from here must not find the token."""
    held = os.environ.pop(VARIABLE, "")
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            held = file.read()
    if not held:
        raise SystemExit(f"Give a file with a ticket, or the ticket itself in {VARIABLE}.")
    return decode(AttemptTicket, held)
