"""Paths that a job asked to read, beyond those that every job reads on its worker."""

from __future__ import annotations

import os

from corral.runtime.failures import AttemptFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def found(asked: Iterable[str], closed: str = "") -> tuple[str, ...]:
    """Where they really are, or an AttemptFailed that says what is wrong with one. `closed` is the
    folder with Corral's own files and tokens: whoever reads those is every user."""
    real = tuple(map(_existing, asked))
    for path in real if closed else ():
        if _holds(path, os.path.realpath(closed)) or _holds(os.path.realpath(closed), path):
            raise AttemptFailed(
                "path_refused",
                f"A job may not read {path}: Corral keeps its own files there, tokens too. Name "
                "the folders beside them that it needs.",
            )
    return real


def _existing(path: str) -> str:
    if not os.path.exists(path):
        raise AttemptFailed(
            "path_missing", f"The job asked to read {path}, and this worker has no such path."
        )
    return os.path.realpath(path)


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))
