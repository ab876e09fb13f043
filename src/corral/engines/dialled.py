"""Engines whose workers dial in to the controller, and the sockets that they come by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from corral.core.worker import Worker
from corral.protocol import messages as wire


class Session(Protocol):
    """One open socket to a worker."""

    def send(self, message: wire.FromController) -> None:
        """Sends a message, or queues it: those of one turn of the event loop share frames."""
        ...

    def mention(self, message: wire.FromController) -> None:
        """The same for what nobody waits for: it goes along with the next frame, or a little
        later in its own."""
        ...

    def rename(self, name: str) -> None:
        """Tells the worker what it is called from now on."""
        ...

    def close(self, code: int, reason: str) -> None: ...

    def pause(self) -> None:
        """Reads nothing more for now: the worker then waits too."""
        ...

    def resume(self) -> None: ...


@runtime_checkable
class Dialled(Protocol):
    stopping: bool
    """Nobody comes in any more."""

    def name_of(self, register: wire.WorkerRegister) -> str:
        """What a worker is called here, whatever it calls itself."""
        ...

    def join(self, session: Session, register: wire.WorkerRegister) -> Worker:
        """A worker registered. A second socket of the same worker replaces the first."""
        ...

    def leave(self, session: Session, worker: str, *, silent_s: float = 0.0) -> None:
        """A socket closed without a word. The grace begins with the last one that was heard."""
        ...

    def hear(self, worker: str, heard: Sequence[wire.FromWorker], size: int = 0) -> None:
        """Messages of one frame of that size."""
        ...
