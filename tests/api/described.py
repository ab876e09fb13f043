"""The application as the controller builds it, without what would answer: its routes alone."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import FastAPI

from corral.api.attempt_door import AttemptDoor
from corral.api.http import Transfers, application
from corral.api.metrics import Metrics
from corral.api.parts import Parts
from corral.core.limits import InputLimits


def described() -> FastAPI:
    nothing, limits = cast(Any, None), InputLimits()
    parts = Parts(*[nothing] * len(Parts.__dataclass_fields__))
    object.__setattr__(parts, "version", "0")
    object.__setattr__(parts, "limits", limits)
    return application(
        transfers=Transfers(
            nothing,
            nothing,
            nothing,
            assets=nothing,
            artifacts=nothing,
            limits=limits,
            artifact_limit=1,
            early={},
        ),
        attempt_door=AttemptDoor(
            nothing,
            nothing,
            nothing,
            current=nothing,
            engines={},
            limits=limits,
            output_limit=1,
            artifacts="",
        ),
        health=nothing,
        parts=parts,
        metrics=Metrics(nothing).router(nothing),
        clock=time.time,
    )
