"""What a submission over REST looks like, and the same as gRPC has it: from there on both take one
way, and `api.submissions` checks everything that is not mere form."""

from __future__ import annotations

import io
import zipfile
from typing import Annotated, Literal

from msgspec import Meta, Struct

from corral.contract import corral_pb2 as pb
from corral.core.errors import InvalidJob, InvalidRequest

_Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Amount = Annotated[float, Meta(ge=0)]


class Bytes(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes inline as base64, or the sha256 of bytes that PUT /packages stored before."""

    data: bytes | None = None
    sha256: str = ""


class Function(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A cloudpickled callable and its cloudpickled `(args, kwargs)`; `code` is a zip of modules
    that both of them name, by the sha256 of bytes stored before."""

    function: Bytes
    arguments: Bytes
    code: Bytes | None = None


class Script(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The text of one Python file, or a zip and what to run in it."""

    source: str | None = None
    package: Bytes | None = None
    entry: str = "main.py"
    argv: list[str] = []


class InputBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An asset by the sha256 that PUT /assets answered, or by its path in the shared root."""

    sha256: str = ""
    path: str = ""


class JobBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One job: a `script` or a `function`, and what it needs. Everything else has a default."""

    script: Script | None = None
    function: Function | None = None
    name: str = ""
    python: str = ""
    requirements: list[str] = []
    env: dict[str, str] = {}
    secrets: list[str] = []
    inputs: dict[str, InputBody] = {}
    gpus: _Count = 0
    gpu_memory: _Amount = 0.0
    vram_gb: _Amount = 0.0
    gpu: str = ""
    cpus: _Amount = 0.0
    memory_gb: _Amount = 0.0
    worker: str = ""
    worker_labels: list[str] = []
    read: list[str] = []
    models: list[str] = []
    duration: _Amount = 0.0
    queue_class: Literal["", "interactive", "batch"] = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    labels: dict[str, str] = {}
    user: str = ""
    batch: str = ""
    notify: str = ""
    idempotency_key: str = ""
    fresh: bool = False
    wait: bool | None = None


class Submission(JobBody, forbid_unknown_fields=True, omit_defaults=True):
    """One job, or `jobs` and nothing else."""

    jobs: list[JobBody] | None = None


class JobsBody(Struct, forbid_unknown_fields=True):
    """Many jobs: accepted together or not at all."""

    jobs: list[JobBody]


_SAME = frozenset(JobBody.__struct_fields__) - {"script", "function", "inputs"}
"""What a submission has under the same names."""


def submissions_of(body: Submission, key: str) -> list[pb.JobSubmission]:
    """The jobs of a body; `key` is the Idempotency-Key header's, for those without one."""
    if body.jobs is None:
        return [submission_of(body, key)]
    if any(getattr(body, name) for name in JobBody.__struct_fields__):
        raise InvalidRequest("Give one job, or `jobs` with each job's own options; not both.")
    return [submission_of(one, f"{key}/{n}" if key else "") for n, one in enumerate(body.jobs)]


def submission_of(body: JobBody, key: str) -> pb.JobSubmission:
    try:
        sent = pb.JobSubmission(
            inputs=[
                pb.Input(name=name, sha256=one.sha256, path=one.path)
                for name, one in body.inputs.items()
            ],
            **{name: getattr(body, name) for name in _SAME},
        )
        sent.idempotency_key = sent.idempotency_key or key
        if body.function is not None:
            sent.function.function.CopyFrom(_blob(body.function.function))
            sent.function.arguments.CopyFrom(_blob(body.function.arguments))
            if body.function.code is not None:
                sent.function.code.CopyFrom(_blob(body.function.code))
        if body.script is not None:
            sent.script.CopyFrom(_script(body.script))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidJob(f"The job cannot be taken as it is: {error}.") from None
    return sent


def _script(script: Script) -> pb.ScriptCall:
    if (script.source is None) == (script.package is None):
        raise InvalidJob("A script has either its source or a package (a zip).")
    if script.source is not None:
        if script.entry != "main.py":
            raise InvalidJob("A script that is given as source is main.py; leave out the entry.")
        package = pb.BlobRef(data=_zip(script.source))
    else:
        assert script.package is not None
        package = _blob(script.package)
    return pb.ScriptCall(package=package, entry=script.entry, argv=script.argv)


def _blob(ref: Bytes) -> pb.BlobRef:
    return pb.BlobRef(data=ref.data or b"", sha256=ref.sha256)


def _zip(source: str) -> bytes:
    """The package that the source alone makes; the same source is the same package."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo("main.py", (1980, 1, 1, 0, 0, 0)), source)
    return packed.getvalue()
