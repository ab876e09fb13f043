"""The application as the controller builds it, without what would answer: its routes alone."""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI

from corral.api.attempt_door import AttemptDoor
from corral.api.http import application
from corral.api.metrics import Metrics
from corral.api.parts import Parts
from corral.core.limits import InputLimits


def described() -> FastAPI:
    nothing, limits = cast(Any, None), InputLimits()
    parts = Parts(*[nothing] * len(Parts.__dataclass_fields__))
    object.__setattr__(parts, "version", "0")
    object.__setattr__(parts, "limits", limits)
    return application(
        attempts=AttemptDoor(parts, nothing, {}, artifact_limit=1).routes(),
        health=nothing,
        parts=parts,
        metrics=Metrics(parts, nothing, nothing).routes(),
    )
