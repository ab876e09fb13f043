"""Corral: round up your GPUs.

Public names load on first use, so that `from corral import job` costs nothing inside a job and
needs nothing but the standard library there. Every runner waits for this import, so it loads no
`typing` either: `TYPE_CHECKING` is what type checkers take it for.
"""

from __future__ import annotations

TYPE_CHECKING = False
__version__ = "0.1.0"

_HOMES = {
    "Asset": "corral.sdk.files.assets",
    "AsyncClient": "corral.sdk.aio",
    "BatchHandle": "corral.sdk.images.batches",
    "Client": "corral.sdk.client",
    "Handle": "corral.sdk.handles",
    "remote": "corral.sdk.functions",
    "shared": "corral.sdk.files.assets",
    **dict.fromkeys(
        (
            *("CorralError", "JobError", "JobFailed", "JobCancelled", "JobRejected", "JobNotFound"),
            *("InvalidJob", "NoGpuWorkers", "ExceedsAllWorkers", "Unavailable", "Unauthorized"),
        ),
        "corral.core.errors",
    ),
}

__all__ = [*sorted(_HOMES), "job"]

if TYPE_CHECKING:
    from typing import Any

    from corral import job as job
    from corral.core.errors import CorralError as CorralError
    from corral.core.errors import ExceedsAllWorkers as ExceedsAllWorkers
    from corral.core.errors import InvalidJob as InvalidJob
    from corral.core.errors import JobCancelled as JobCancelled
    from corral.core.errors import JobError as JobError
    from corral.core.errors import JobFailed as JobFailed
    from corral.core.errors import JobNotFound as JobNotFound
    from corral.core.errors import JobRejected as JobRejected
    from corral.core.errors import NoGpuWorkers as NoGpuWorkers
    from corral.core.errors import Unauthorized as Unauthorized
    from corral.core.errors import Unavailable as Unavailable
    from corral.sdk.aio import AsyncClient as AsyncClient
    from corral.sdk.client import Client as Client
    from corral.sdk.files.assets import Asset as Asset
    from corral.sdk.files.assets import shared as shared
    from corral.sdk.functions import remote as remote
    from corral.sdk.handles import Handle as Handle
    from corral.sdk.images.batches import BatchHandle as BatchHandle


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "job":
        return import_module("corral.job")
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ImportError:
            from importlib.util import find_spec

            if find_spec("corral.server") is not None:
                raise  # something is wrong with this installation
            return import_module("corral.sdk.functions").absent_in_jobs(name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")
