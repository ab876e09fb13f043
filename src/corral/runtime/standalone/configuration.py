"""What a runner is told before its order: limits, walls, its interpreter and its variables."""

from __future__ import annotations

import os
import sys
from typing import Any

from corral.runtime.standalone.environment import StandaloneEnvironment
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket

GIB = 1 << 30


def configuration(
    order: AttemptOrder, ticket: AttemptTicket, environment: StandaloneEnvironment, folder: str
) -> dict[str, Any]:
    return {
        "limits": {"memory_bytes": int(order.needs.get("memory_gb", 0.0) * GIB) or None},
        "isolate": ticket.isolate,
        "read_paths": [
            environment.kit,
            environment.path,
            environment.base,
            *([ticket.certificate] if ticket.certificate else ()),
            *ticket.read_paths,
            *ticket.model_paths,
        ],
        "write_paths": [folder, *ticket.write_paths],
        "python": environment.python,
        "environ": _environ(order, ticket, environment, folder),
        # By its stdin: not in what the system shows of the process, and never to a log.
        **({"secrets": order.secrets} if order.secrets else {}),
    }


NOT_FOR_JOBS = ("CORRAL_", "UV_", "PIP_", "GIT_", "XDG_")
"""What this process is told, and what builds need: how to reach registries, with which password."""


def inherited() -> dict[str, str]:
    """What the job finds of this process's own variables: whoever starts it decides."""
    return {name: text for name, text in os.environ.items() if not name.startswith(NOT_FOR_JOBS)}


def _environ(
    order: AttemptOrder, ticket: AttemptTicket, environment: StandaloneEnvironment, folder: str
) -> dict[str, str]:
    programs, path = os.path.dirname(environment.python), os.environ.get("PATH", "")
    work, tmp = os.path.join(folder, "work"), os.path.join(folder, "tmp")
    document, models = order.document, ticket.model_paths
    homes = ("USERPROFILE", "HOME") if sys.platform == "win32" else ("HOME",)
    temporary = ("TEMP", "TMP") if sys.platform == "win32" else ("TMPDIR",)
    told = {
        "PATH": f"{programs}{os.pathsep}{path}" if path else programs,
        "VIRTUAL_ENV": environment.path,
        **dict.fromkeys(homes, work),
        **dict.fromkeys(temporary, tmp),
        **(document.get("env", {}) if document["work"]["type"] != "pipeline" else {}),
        **({"CORRAL_MODEL_PATHS": os.pathsep.join(models)} if models else {}),
    }
    if ticket.devices is not None:
        # An attempt sees the GPUs it holds and no others, so these are not the user's to set.
        devices = ",".join(ticket.devices)
        told |= {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices}
    return told
