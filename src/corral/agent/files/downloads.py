"""Assets on their way to this worker, and how that fails: see `runtime.files.downloads`."""

from __future__ import annotations

from corral.core.job import Failure
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.downloads import Abandoned, Download, Ticket, no_room

__all__ = ["Abandoned", "AssetFailed", "Download", "Ticket", "no_room"]


class AssetFailed(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message)

    @classmethod
    def of(cls, error: AttemptFailed) -> AssetFailed:
        return cls(error.failure["code"], error.failure["message"])
