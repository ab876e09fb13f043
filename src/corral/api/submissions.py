"""What a client sent becomes a job document, or an InvalidJob that says what to change."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath, PureWindowsPath

import msgspec
from msgspec.structs import replace

from corral.contract import corral_pb2 as pb
from corral.core.access import Caller
from corral.core.assets import check_input_names
from corral.core.errors import (
    InvalidJob,
    TextTooLong,
    TooManyArguments,
    TooManyInputs,
    TooManyJobs,
    TooManyLabels,
    TooManyModels,
    TooManyRequirements,
    TooManySecrets,
    TooManyVariables,
)
from corral.core.job import (
    DEFAULT_DURATION_S,
    MAX_DURATION_S,
    Blob,
    FunctionCall,
    Input,
    Job,
    Needs,
    QueueClass,
    ScriptCall,
    gpu_needs,
)
from corral.core.limits import InputLimits as Limits
from corral.core.text import is_digest
from corral.core.webhook import check_webhook
from corral.runtime.files.models import model_name

_CLASSES = frozenset(member.value for member in QueueClass)
KEPT_LIKES, KEPT_BYTES = 256, 16 * 1024
MOST_PATHS = 64
_PYTHON = re.compile(r"3\.\d{1,2}")
_LOCAL = re.compile(r"^\s*[./~\\]|file:|^[A-Za-z]:\\")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY = re.compile(r"[\w.]+:[\w.]+")


def jobs_of(
    request: pb.SubmitJobsRequest, default: QueueClass, limits: Limits, caller: Caller
) -> list[Job]:
    count = len(request.jobs) + len(request.calls)
    if not count:
        raise InvalidJob("A submission holds at least one job.")
    if count > limits.jobs:
        raise TooManyJobs(
            f"{count:,} jobs in one submission; {limits.jobs:,} may be. Submit them in several."
        )
    jobs = [job_of(one, default, limits, caller) for one in request.jobs]
    if request.calls:
        jobs += _jobs_like(_like(request, default, limits, caller), request.calls, limits)
    return jobs


def job_of(sent: pb.JobSubmission, default: QueueClass, limits: Limits, caller: Caller) -> Job:
    """Checks everything; what passes here cannot fail for its form later."""
    _check(sent, limits)
    return Job(
        work=_work(sent, limits),
        python=sent.python,
        requirements=tuple(sent.requirements),
        env=dict(sent.env),
        needs=_needs(
            sent.gpus,
            round(sent.gpu_memory, 4),
            sent.vram_gb,
            sent.gpu,
            sent.cpus or 1.0,
            sent.memory_gb,
            tuple(sent.worker_labels),
            sent.worker or "auto",
            # Sorted and each once: jobs for the same models wait in one line.
            tuple(sorted(set(map(model_name, sent.models)))),
            tuple(_place(path, limits.text) for path in sent.read) if sent.read else (),
            bool(sent.read) and caller.is_owner,
            limits.text,
        ),
        duration_s=sent.duration or DEFAULT_DURATION_S,
        queue_class=QueueClass(sent.queue_class) if sent.queue_class else default,
        priority=sent.priority,
        retries=sent.retries,
        name=sent.name,
        labels=dict(sent.labels),
        user=caller.user(sent.user),
        on_behalf=caller.on_behalf(sent.user),
        key=sent.idempotency_key,
        batch=sent.batch,
        fresh=sent.fresh,
        wait=sent.wait if sent.HasField("wait") else None,
        secrets=tuple(dict.fromkeys(sent.secrets)) if sent.secrets else (),
        notify=sent.notify,
        inputs=_inputs(sent, limits) if sent.inputs else (),
    )


_met: dict[tuple[bytes, QueueClass, Caller, int], Job] = {}
"""Jobs checked lately, by the bytes that calls share: a program calls its functions again. Of each
caller apart: who asks decides whose the job is and what it may read."""


def _like(
    request: pb.SubmitJobsRequest, default: QueueClass, limits: Limits, caller: Caller
) -> Job:
    """What the calls have in common, as the first of them."""
    data = request.like.SerializeToString(deterministic=True)
    key = (data, default, caller, id(limits))
    job = _met.get(key)
    if job is None:
        request.like.function.arguments.CopyFrom(request.calls[0].arguments)
        job = job_of(request.like, default, limits, caller)
        if len(data) <= KEPT_BYTES:
            _met[key] = job
            if len(_met) > KEPT_LIKES:
                del _met[next(iter(_met))]
    return job


def _jobs_like(first: Job, calls: Sequence[pb.Call], limits: Limits) -> list[Job]:
    """Calls of one function: what they share is checked once."""
    if not isinstance(first.work, FunctionCall):
        raise InvalidJob("`like` is a job with a function; its calls bring the arguments.")
    function, code, jobs = first.work.function, first.work.code, []
    for call in calls:
        key = call.idempotency_key
        _text("idempotency_key", key, limits.text)
        work = FunctionCall(function=function, arguments=_blob(call.arguments), code=code)
        jobs.append(replace(first, work=work, key=key))
    return jobs


@lru_cache(maxsize=1024)
def _needs(
    gpus: int,
    gpu_memory: float,
    vram_gb: float,
    gpu: str,
    cpus: float,
    memory_gb: float,
    labels: tuple[str, ...],
    worker: str,
    models: tuple[str, ...],
    read: tuple[str, ...],
    owned: bool,
    longest: int,
) -> Needs:
    whole, tenths = gpu_needs(gpus=gpus, gpu_memory=gpu_memory, vram_gb=vram_gb, gpu=gpu)
    for label in (*labels, worker):
        _text("worker_labels and worker", label, longest)
    _text("gpu", gpu, longest)
    for model in models:
        _text("models", model, longest)
        if not model:
            raise InvalidJob("models holds names such as 'sdxl_1.0', and one of them is empty.")
    try:
        return msgspec.convert(
            {
                "gpus": whole,
                "gpu_tenths": tenths,
                "vram_gb": vram_gb,
                "gpu": gpu,
                "cpus": cpus,
                "memory_gb": memory_gb,
                "labels": labels,
                "worker": worker,
                "models": models,
                "read": read,
                "owned": owned,
            },
            Needs,
        )
    except msgspec.ValidationError as error:
        raise InvalidJob(f"What the job needs is not possible: {error}.".replace("`", "")) from None


def _place(path: str, longest: int) -> str:
    _text("read", path, longest)
    for style in (PurePosixPath, PureWindowsPath):
        place = style(path)
        if place.is_absolute() and ".." not in place.parts:
            return str(place)
    raise InvalidJob(
        f"read has {path[:200]!r}, which is no whole path. Write it from the root of the worker's "
        "disk, without `..`."
    )


def _work(sent: pb.JobSubmission, limits: Limits) -> FunctionCall | ScriptCall:
    given = [sent.HasField("function"), sent.HasField("script"), bool(sent.code_package)]
    if sum(given) != 1:
        raise InvalidJob("A job is one of: function, script, or code_package (a zip with main.py).")
    if sent.HasField("function"):
        call = sent.function
        return FunctionCall(
            function=_blob(call.function),
            arguments=_blob(call.arguments),
            code=_named(call.code) if call.HasField("code") else None,
        )
    if sent.code_package:
        return ScriptCall(package=_whole(sent.code_package), entry="main.py")
    entry = sent.script.entry or "main.py"
    if not _ENTRY.fullmatch(entry) and (
        not entry.endswith(".py") or entry.startswith("/") or ".." in entry.split("/")
    ):
        raise InvalidJob(
            f"The entry {entry[:100]!r} is neither a .py file of the package nor module:function."
        )
    _count(TooManyArguments, "arguments", len(sent.script.argv), limits.arguments)
    return ScriptCall(package=_blob(sent.script.package), entry=entry, argv=tuple(sent.script.argv))


def _inputs(sent: pb.JobSubmission, limits: Limits) -> tuple[Input, ...]:
    """By name, so that the same inputs make the same document."""
    _count(TooManyInputs, "inputs", len(sent.inputs), limits.inputs)
    check_input_names(one.name for one in sent.inputs)
    found = []
    for one in sent.inputs:
        if one.sha256 and not is_digest(one.sha256):
            raise InvalidJob(f"The input {one.name!r} names no sha256: {one.sha256[:80]!r}.")
        if not one.sha256 and not one.path:
            raise InvalidJob(f"The input {one.name!r} needs the sha256 of an asset.")
        _text("inputs", one.path, limits.text)
        found.append(Input(name=one.name, sha256=one.sha256, size=one.size, path=one.path))
    return tuple(sorted(found, key=lambda one: one.name))


def _blob(ref: pb.BlobRef) -> Blob:
    data, sha256 = ref.data, ref.sha256  # each look at a message's field makes a copy
    if data:
        whole = _whole(data)
        if sha256 and sha256 != whole.sha256:
            raise InvalidJob(f"The bytes have sha256 {whole.sha256}, not {sha256[:64]}.")
        return whole
    if not is_digest(sha256):
        raise InvalidJob("Each package needs its bytes, or the sha256 of bytes stored before.")
    return Blob(sha256=sha256, size=ref.size)


def _named(ref: pb.BlobRef) -> Blob:
    """What many jobs share never rides along with each."""
    if ref.data or not is_digest(ref.sha256):
        raise InvalidJob("The code of a function is named by its sha256; store its bytes before.")
    return Blob(sha256=ref.sha256, size=ref.size)


def _whole(data: bytes) -> Blob:
    """Bytes of any size, still with their digest; the queue moves large ones to the blobs."""
    return Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data)


def _check(sent: pb.JobSubmission, limits: Limits) -> None:
    for field in ("gpu_memory", "duration", "vram_gb", "cpus", "memory_gb"):
        if not math.isfinite(getattr(sent, field)):
            raise InvalidJob(f"{field} is not a number.")
    if sent.gpu_memory and not round(sent.gpu_memory, 4):
        raise InvalidJob(f"gpu_memory is 0.1 to 1.0 in tenths; got {sent.gpu_memory:g}.")
    if sent.duration and not 1 <= sent.duration <= MAX_DURATION_S:
        raise InvalidJob(f"duration is 1 second to 7 days; got {sent.duration:g} s.")
    if sent.queue_class and sent.queue_class not in _CLASSES:
        raise InvalidJob(f"The class is interactive or batch; got {sent.queue_class[:40]!r}.")
    if not -100 <= sent.priority <= 100:
        raise InvalidJob(f"priority is -100 to 100, higher first; got {sent.priority}.")
    if sent.retries > 100:
        raise InvalidJob(f"retries is 0 to 100; got {sent.retries}.")
    if sent.python and not _PYTHON.fullmatch(sent.python):
        raise InvalidJob(f"python is a version like 3.11; got {sent.python[:40]!r}.")
    for field in ("name", "user", "idempotency_key", "batch"):
        _text(field, getattr(sent, field), limits.text)
    _count(TooManyLabels, "labels", len(sent.labels), limits.labels)
    for key, value in sent.labels.items():
        _text("labels", key, limits.text)
        _text("labels", value, limits.text)
    _count(TooManyModels, "models", len(sent.models), limits.models)
    if len(sent.read) > MOST_PATHS:
        raise InvalidJob(f"read has {len(sent.read)} paths; {MOST_PATHS} may be. Name a folder.")
    if sent.requirements:
        _check_requirements(sent, limits)
    if sent.env:
        _check_env(sent, limits)
    if sent.secrets:
        _check_secrets(sent, limits)
    if sent.notify:
        check_webhook(sent.notify)


def _check_requirements(sent: pb.JobSubmission, limits: Limits) -> None:
    _count(TooManyRequirements, "requirements", len(sent.requirements), limits.requirements)
    for requirement in sent.requirements:
        _text("requirements", requirement, limits.text)
        if not requirement.strip() or requirement.lstrip().startswith("-"):
            raise InvalidJob(
                f"{requirement[:100]!r} is no requirement; options of pip are not taken here."
            )
        if _LOCAL.search(requirement):
            raise InvalidJob(
                f"{requirement[:100]!r} is a path on one machine; send code along as a folder."
            )


def _check_env(sent: pb.JobSubmission, limits: Limits) -> None:
    _count(TooManyVariables, "variables", len(sent.env), limits.variables)
    for name, value in sent.env.items():
        if len(name) > limits.text:
            raise TextTooLong(f"The name of a variable is longer than {limits.text}.")
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise InvalidJob(f"{name[:100]!r} is no name of an environment variable.")
        if name.startswith("CORRAL_"):
            raise InvalidJob(f"{name[:100]} is Corral's own; choose another name.")


def _check_secrets(sent: pb.JobSubmission, limits: Limits) -> None:
    _count(TooManySecrets, "secrets", len(sent.secrets), limits.secrets)
    for name in sent.secrets:
        _text("secrets", name, limits.text)
        if name in sent.env:
            raise InvalidJob(f"{name} is given twice, in env and in secrets. Leave one out.")


def _count(error: type[InvalidJob], what: str, found: int, most: int) -> None:
    if found > most:
        raise error(f"{found:,} {what}; {most:,} are allowed for one job.")


def _text(field: str, value: str, longest: int) -> None:
    if len(value) > longest:
        raise TextTooLong(f"{field} has {len(value):,} characters; {longest:,} are allowed.")
    if not value.isprintable():
        raise InvalidJob(f"{field} holds characters that cannot be printed.")
