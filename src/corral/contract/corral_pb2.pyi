from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class BlobRef(_message.Message):
    __slots__ = ("sha256", "size", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size: int
    data: bytes
    def __init__(self, sha256: _Optional[str] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AssetRequest(_message.Message):
    __slots__ = ("sha256", "size", "path")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size: int
    path: str
    def __init__(self, sha256: _Optional[str] = ..., size: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class AssetReply(_message.Message):
    __slots__ = ("known", "sha256", "size", "path", "put_url")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PUT_URL_FIELD_NUMBER: _ClassVar[int]
    known: bool
    sha256: str
    size: int
    path: str
    put_url: str
    def __init__(self, known: _Optional[bool] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., path: _Optional[str] = ..., put_url: _Optional[str] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("name", "sha256", "size", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    size: int
    path: str
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class FunctionCall(_message.Message):
    __slots__ = ("function", "arguments", "code")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    function: BlobRef
    arguments: BlobRef
    code: BlobRef
    def __init__(self, function: _Optional[_Union[BlobRef, _Mapping]] = ..., arguments: _Optional[_Union[BlobRef, _Mapping]] = ..., code: _Optional[_Union[BlobRef, _Mapping]] = ...) -> None: ...

class ScriptCall(_message.Message):
    __slots__ = ("package", "entry", "argv")
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    package: BlobRef
    entry: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, package: _Optional[_Union[BlobRef, _Mapping]] = ..., entry: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ...) -> None: ...

class JobSubmission(_message.Message):
    __slots__ = ("code_package", "requirements", "gpu_memory", "duration", "gpus", "function", "script", "python", "env", "vram_gb", "cpus", "memory_gb", "worker_labels", "worker", "queue_class", "priority", "retries", "name", "labels", "user", "idempotency_key", "batch", "fresh", "wait", "secrets", "notify", "inputs", "models", "gpu", "read")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    VRAM_GB_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    WORKER_LABELS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    code_package: bytes
    requirements: _containers.RepeatedScalarFieldContainer[str]
    gpu_memory: float
    duration: float
    gpus: int
    function: FunctionCall
    script: ScriptCall
    python: str
    env: _containers.ScalarMap[str, str]
    vram_gb: float
    cpus: float
    memory_gb: float
    worker_labels: _containers.RepeatedScalarFieldContainer[str]
    worker: str
    queue_class: str
    priority: int
    retries: int
    name: str
    labels: _containers.ScalarMap[str, str]
    user: str
    idempotency_key: str
    batch: str
    fresh: bool
    wait: bool
    secrets: _containers.RepeatedScalarFieldContainer[str]
    notify: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    models: _containers.RepeatedScalarFieldContainer[str]
    gpu: str
    read: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, code_package: _Optional[bytes] = ..., requirements: _Optional[_Iterable[str]] = ..., gpu_memory: _Optional[float] = ..., duration: _Optional[float] = ..., gpus: _Optional[int] = ..., function: _Optional[_Union[FunctionCall, _Mapping]] = ..., script: _Optional[_Union[ScriptCall, _Mapping]] = ..., python: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., vram_gb: _Optional[float] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., worker_labels: _Optional[_Iterable[str]] = ..., worker: _Optional[str] = ..., queue_class: _Optional[str] = ..., priority: _Optional[int] = ..., retries: _Optional[int] = ..., name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., user: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., batch: _Optional[str] = ..., fresh: _Optional[bool] = ..., wait: _Optional[bool] = ..., secrets: _Optional[_Iterable[str]] = ..., notify: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., models: _Optional[_Iterable[str]] = ..., gpu: _Optional[str] = ..., read: _Optional[_Iterable[str]] = ...) -> None: ...

class SubmitJobsRequest(_message.Message):
    __slots__ = ("jobs", "hold_s", "like", "calls")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobSubmission]
    hold_s: float
    like: JobSubmission
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobSubmission, _Mapping]]] = ..., hold_s: _Optional[float] = ..., like: _Optional[_Union[JobSubmission, _Mapping]] = ..., calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("arguments", "idempotency_key")
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    arguments: BlobRef
    idempotency_key: str
    def __init__(self, arguments: _Optional[_Union[BlobRef, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class SubmitJobsReply(_message.Message):
    __slots__ = ("job_ids", "warnings", "events", "cursor")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    cursor: str
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[JobEvent, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("job_id", "worker", "apart", "from_start", "duration", "retries", "memory_gb", "backend")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker: str
    apart: bool
    from_start: bool
    duration: float
    retries: int
    memory_gb: float
    backend: str
    def __init__(self, job_id: _Optional[str] = ..., worker: _Optional[str] = ..., apart: _Optional[bool] = ..., from_start: _Optional[bool] = ..., duration: _Optional[float] = ..., retries: _Optional[int] = ..., memory_gb: _Optional[float] = ..., backend: _Optional[str] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("job_id", "by")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    by: float
    def __init__(self, job_id: _Optional[str] = ..., by: _Optional[float] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: str
    def __init__(self, batch: _Optional[str] = ...) -> None: ...

class CancelBatchReply(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job_id", "batch", "after", "until_now", "ends_only")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    ENDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    batch: str
    after: str
    until_now: bool
    ends_only: bool
    def __init__(self, job_id: _Optional[str] = ..., batch: _Optional[str] = ..., after: _Optional[str] = ..., until_now: _Optional[bool] = ..., ends_only: _Optional[bool] = ...) -> None: ...

class JobEvents(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[JobEvent, _Mapping]]] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("job_id", "cursor", "at", "attempt", "state", "output", "progress", "artifact", "ended")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    cursor: str
    at: float
    attempt: int
    state: StateChanged
    output: Output
    progress: Progress
    artifact: ArtifactView
    ended: Ended
    def __init__(self, job_id: _Optional[str] = ..., cursor: _Optional[str] = ..., at: _Optional[float] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[StateChanged, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., artifact: _Optional[_Union[ArtifactView, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("state", "worker", "code", "message", "devices")
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    state: str
    worker: str
    code: str
    message: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[str] = ..., worker: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("stream", "data", "skipped")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    stream: str
    data: bytes
    skipped: int
    def __init__(self, stream: _Optional[str] = ..., data: _Optional[bytes] = ..., skipped: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("fraction", "message", "metrics", "step")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    message: str
    metrics: _containers.ScalarMap[str, float]
    step: int
    def __init__(self, fraction: _Optional[float] = ..., message: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., step: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "type", "traceback", "exit_code", "pickled")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    PICKLED_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    type: str
    traceback: str
    exit_code: int
    pickled: bytes
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., type: _Optional[str] = ..., traceback: _Optional[str] = ..., exit_code: _Optional[int] = ..., pickled: _Optional[bytes] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("state", "result", "failure", "seconds")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    state: str
    result: BlobRef
    failure: Failure
    seconds: float
    def __init__(self, state: _Optional[str] = ..., result: _Optional[_Union[BlobRef, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., seconds: _Optional[float] = ...) -> None: ...

class ArtifactView(_message.Message):
    __slots__ = ("name", "size", "file_sha256", "uri")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FILE_SHA256_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    file_sha256: str
    uri: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., file_sha256: _Optional[str] = ..., uri: _Optional[str] = ...) -> None: ...

class JobView(_message.Message):
    __slots__ = ("job_id", "name", "state", "queue_class", "priority", "attempt", "worker", "user", "batch", "labels", "submitted_at", "started_at", "ended_at", "seconds", "failure", "result", "artifacts", "progress", "retry_of", "devices", "warnings", "workload", "correlation_id", "models", "record", "more_artifacts", "worker_silent_s", "duration", "last_checkpoint")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RETRY_OF_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    MORE_ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SILENT_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    state: str
    queue_class: str
    priority: int
    attempt: int
    worker: str
    user: str
    batch: str
    labels: _containers.ScalarMap[str, str]
    submitted_at: float
    started_at: float
    ended_at: float
    seconds: float
    failure: Failure
    result: BlobRef
    artifacts: _containers.RepeatedCompositeFieldContainer[ArtifactView]
    progress: Progress
    retry_of: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    workload: str
    correlation_id: str
    models: _containers.RepeatedScalarFieldContainer[str]
    record: bytes
    more_artifacts: bool
    worker_silent_s: float
    duration: float
    last_checkpoint: CheckpointView
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., queue_class: _Optional[str] = ..., priority: _Optional[int] = ..., attempt: _Optional[int] = ..., worker: _Optional[str] = ..., user: _Optional[str] = ..., batch: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., submitted_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., seconds: _Optional[float] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., result: _Optional[_Union[BlobRef, _Mapping]] = ..., artifacts: _Optional[_Iterable[_Union[ArtifactView, _Mapping]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., retry_of: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., workload: _Optional[str] = ..., correlation_id: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., record: _Optional[bytes] = ..., more_artifacts: _Optional[bool] = ..., worker_silent_s: _Optional[float] = ..., duration: _Optional[float] = ..., last_checkpoint: _Optional[_Union[CheckpointView, _Mapping]] = ...) -> None: ...

class CheckpointView(_message.Message):
    __slots__ = ("size", "at")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    size: int
    at: float
    def __init__(self, size: _Optional[int] = ..., at: _Optional[float] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ("job_id", "after", "limit", "name")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: str
    limit: int
    name: str
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class ListArtifactsReply(_message.Message):
    __slots__ = ("artifacts", "more")
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[ArtifactView]
    more: bool
    def __init__(self, artifacts: _Optional[_Iterable[_Union[ArtifactView, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("states", "batch", "limit", "before", "active", "queue_class", "worker", "labels", "user", "since", "until", "text")
    STATES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CLASS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    batch: str
    limit: int
    before: str
    active: bool
    queue_class: str
    worker: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    user: str
    since: float
    until: float
    text: str
    def __init__(self, states: _Optional[_Iterable[str]] = ..., batch: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[str] = ..., active: _Optional[bool] = ..., queue_class: _Optional[str] = ..., worker: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., user: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobView]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ...) -> None: ...

class QueueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueView(_message.Message):
    __slots__ = ("paused", "paused_at", "paused_by", "waiting", "active")
    class WaitingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_AT_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    paused_at: float
    paused_by: str
    waiting: _containers.ScalarMap[str, int]
    active: int
    def __init__(self, paused: _Optional[bool] = ..., paused_at: _Optional[float] = ..., paused_by: _Optional[str] = ..., waiting: _Optional[_Mapping[str, int]] = ..., active: _Optional[int] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("name", "role", "expires_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    expires_in: float
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., expires_in: _Optional[float] = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ("token", "view")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    token: str
    view: TokenView
    def __init__(self, token: _Optional[str] = ..., view: _Optional[_Union[TokenView, _Mapping]] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenView]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenView, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TokenView(_message.Message):
    __slots__ = ("name", "role", "created_at", "expires_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    created_at: float
    expires_at: float
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., created_at: _Optional[float] = ..., expires_at: _Optional[float] = ...) -> None: ...

class WhyWorker(_message.Message):
    __slots__ = ("worker", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: str
    reason: str
    def __init__(self, worker: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("job_id", "state", "summary", "workers", "history")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: str
    summary: str
    workers: _containers.RepeatedCompositeFieldContainer[WhyWorker]
    history: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[str] = ..., summary: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WhyWorker, _Mapping]]] = ..., history: _Optional[_Iterable[str]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class GpuView(_message.Message):
    __slots__ = ("uuid", "name", "vram_gb", "free", "free_gb", "ours_gb", "others_gb", "temperature_c", "utilisation", "tflops", "lost")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VRAM_GB_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    FREE_GB_FIELD_NUMBER: _ClassVar[int]
    OURS_GB_FIELD_NUMBER: _ClassVar[int]
    OTHERS_GB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    TFLOPS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    vram_gb: float
    free: float
    free_gb: float
    ours_gb: float
    others_gb: float
    temperature_c: float
    utilisation: float
    tflops: float
    lost: bool
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., vram_gb: _Optional[float] = ..., free: _Optional[float] = ..., free_gb: _Optional[float] = ..., ours_gb: _Optional[float] = ..., others_gb: _Optional[float] = ..., temperature_c: _Optional[float] = ..., utilisation: _Optional[float] = ..., tflops: _Optional[float] = ..., lost: _Optional[bool] = ...) -> None: ...

class ChangeWorkerRequest(_message.Message):
    __slots__ = ("worker", "name", "draining", "labels")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    name: str
    draining: bool
    labels: WorkerLabels
    def __init__(self, worker: _Optional[str] = ..., name: _Optional[str] = ..., draining: _Optional[bool] = ..., labels: _Optional[_Union[WorkerLabels, _Mapping]] = ...) -> None: ...

class WorkerLabels(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, labels: _Optional[_Iterable[str]] = ...) -> None: ...

class RevokeWorkerRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class InviteRequest(_message.Message):
    __slots__ = ("client", "role", "expires_in", "renew", "uses")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    client: str
    role: str
    expires_in: float
    renew: bool
    uses: int
    def __init__(self, client: _Optional[str] = ..., role: _Optional[str] = ..., expires_in: _Optional[float] = ..., renew: _Optional[bool] = ..., uses: _Optional[int] = ...) -> None: ...

class ListJoinRequestsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinRequestView(_message.Message):
    __slots__ = ("name", "address", "code", "age_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    code: str
    age_s: float
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., code: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class ListJoinRequestsReply(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[JoinRequestView]
    def __init__(self, requests: _Optional[_Iterable[_Union[JoinRequestView, _Mapping]]] = ...) -> None: ...

class ConfirmJoinRequest(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: str
    def __init__(self, code: _Optional[str] = ...) -> None: ...

class ConfirmJoinReply(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class InviteReply(_message.Message):
    __slots__ = ("invitation", "shell", "powershell", "expires_at")
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    SHELL_FIELD_NUMBER: _ClassVar[int]
    POWERSHELL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    shell: str
    powershell: str
    expires_at: float
    def __init__(self, invitation: _Optional[str] = ..., shell: _Optional[str] = ..., powershell: _Optional[str] = ..., expires_at: _Optional[float] = ...) -> None: ...

class WorkerView(_message.Message):
    __slots__ = ("id", "name", "engine", "connected", "cpus", "memory_gb", "gpus", "labels", "workloads", "platform", "python", "enforced", "running", "waiting", "seen_at", "draining", "left", "version", "circuit", "load", "models", "models_loaded", "model_paths", "output_path", "task_types", "servers")
    class EnforcedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MODELS_LOADED_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATHS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPES_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    engine: str
    connected: bool
    cpus: float
    memory_gb: float
    gpus: _containers.RepeatedCompositeFieldContainer[GpuView]
    labels: _containers.RepeatedScalarFieldContainer[str]
    workloads: _containers.RepeatedScalarFieldContainer[str]
    platform: str
    python: str
    enforced: _containers.ScalarMap[str, str]
    running: int
    waiting: int
    seen_at: float
    draining: bool
    left: bool
    version: str
    circuit: str
    load: float
    models: _containers.RepeatedCompositeFieldContainer[ModelView]
    models_loaded: _containers.RepeatedScalarFieldContainer[str]
    model_paths: _containers.RepeatedScalarFieldContainer[str]
    output_path: str
    task_types: _containers.RepeatedScalarFieldContainer[str]
    servers: _containers.RepeatedCompositeFieldContainer[ImageServerView]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., engine: _Optional[str] = ..., connected: _Optional[bool] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., gpus: _Optional[_Iterable[_Union[GpuView, _Mapping]]] = ..., labels: _Optional[_Iterable[str]] = ..., workloads: _Optional[_Iterable[str]] = ..., platform: _Optional[str] = ..., python: _Optional[str] = ..., enforced: _Optional[_Mapping[str, str]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., seen_at: _Optional[float] = ..., draining: _Optional[bool] = ..., left: _Optional[bool] = ..., version: _Optional[str] = ..., circuit: _Optional[str] = ..., load: _Optional[float] = ..., models: _Optional[_Iterable[_Union[ModelView, _Mapping]]] = ..., models_loaded: _Optional[_Iterable[str]] = ..., model_paths: _Optional[_Iterable[str]] = ..., output_path: _Optional[str] = ..., task_types: _Optional[_Iterable[str]] = ..., servers: _Optional[_Iterable[_Union[ImageServerView, _Mapping]]] = ...) -> None: ...

class ImageServerView(_message.Message):
    __slots__ = ("kind", "url", "trouble")
    KIND_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    url: str
    trouble: str
    def __init__(self, kind: _Optional[str] = ..., url: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class ModelView(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class ListWorkersReply(_message.Message):
    __slots__ = ("workers", "more")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerView]
    more: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerView, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("status", "version", "workers", "queued", "running", "started_at", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: str
    version: str
    workers: int
    queued: int
    running: int
    started_at: float
    reason: str
    def __init__(self, status: _Optional[str] = ..., version: _Optional[str] = ..., workers: _Optional[int] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., started_at: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupChunk(_message.Message):
    __slots__ = ("data", "done", "total")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    done: int
    total: int
    def __init__(self, data: _Optional[bytes] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("job_id", "name")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class SetSecretRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class RemoveSecretRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListSecretsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SecretView(_message.Message):
    __slots__ = ("name", "set_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SET_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    set_at: float
    def __init__(self, name: _Optional[str] = ..., set_at: _Optional[float] = ...) -> None: ...

class ListSecretsReply(_message.Message):
    __slots__ = ("secrets",)
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[SecretView]
    def __init__(self, secrets: _Optional[_Iterable[_Union[SecretView, _Mapping]]] = ...) -> None: ...

class BuildBatchRequest(_message.Message):
    __slots__ = ("plan", "dry_run", "key")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    dry_run: bool
    key: str
    def __init__(self, plan: _Optional[bytes] = ..., dry_run: _Optional[bool] = ..., key: _Optional[str] = ...) -> None: ...

class BuildBatchReply(_message.Message):
    __slots__ = ("batch", "jobs", "estimate_s", "warnings", "records")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_S_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    batch: str
    jobs: int
    estimate_s: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    records: bytes
    def __init__(self, batch: _Optional[str] = ..., jobs: _Optional[int] = ..., estimate_s: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ..., records: _Optional[bytes] = ...) -> None: ...

class ListBatchesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListBatchesReply(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[BatchView]
    def __init__(self, batches: _Optional[_Iterable[_Union[BatchView, _Mapping]]] = ...) -> None: ...

class BatchView(_message.Message):
    __slots__ = ("batch", "jobs", "states", "done", "submitted_at", "ended_at", "seconds", "workers", "model_switches", "left_s")
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    batch: str
    jobs: int
    states: _containers.ScalarMap[str, int]
    done: float
    submitted_at: float
    ended_at: float
    seconds: float
    workers: _containers.RepeatedCompositeFieldContainer[BatchWorker]
    model_switches: int
    left_s: float
    def __init__(self, batch: _Optional[str] = ..., jobs: _Optional[int] = ..., states: _Optional[_Mapping[str, int]] = ..., done: _Optional[float] = ..., submitted_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., seconds: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[BatchWorker, _Mapping]]] = ..., model_switches: _Optional[int] = ..., left_s: _Optional[float] = ...) -> None: ...

class BatchWorker(_message.Message):
    __slots__ = ("worker", "succeeded", "failed", "running", "seconds", "model_switches")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    succeeded: int
    failed: int
    running: int
    seconds: float
    model_switches: int
    def __init__(self, worker: _Optional[str] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., running: _Optional[int] = ..., seconds: _Optional[float] = ..., model_switches: _Optional[int] = ...) -> None: ...

class PresetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SavePresetRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class PresetView(_message.Message):
    __slots__ = ("name", "saved_at", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    saved_at: float
    value: bytes
    def __init__(self, name: _Optional[str] = ..., saved_at: _Optional[float] = ..., value: _Optional[bytes] = ...) -> None: ...

class ListPresetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPresetsReply(_message.Message):
    __slots__ = ("presets",)
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    presets: _containers.RepeatedCompositeFieldContainer[PresetView]
    def __init__(self, presets: _Optional[_Iterable[_Union[PresetView, _Mapping]]] = ...) -> None: ...

class RateJobRequest(_message.Message):
    __slots__ = ("job_id", "rating", "note")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rating: int
    note: str
    def __init__(self, job_id: _Optional[str] = ..., rating: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class RatingView(_message.Message):
    __slots__ = ("job_id", "rating", "note", "by", "at")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    rating: int
    note: str
    by: str
    at: float
    def __init__(self, job_id: _Optional[str] = ..., rating: _Optional[int] = ..., note: _Optional[str] = ..., by: _Optional[str] = ..., at: _Optional[float] = ...) -> None: ...

class ListLearningsRequest(_message.Message):
    __slots__ = ("since", "until", "batch", "run")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    since: float
    until: float
    batch: str
    run: str
    def __init__(self, since: _Optional[float] = ..., until: _Optional[float] = ..., batch: _Optional[str] = ..., run: _Optional[str] = ...) -> None: ...

class LearningLines(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class LearningPlan(_message.Message):
    __slots__ = ("plan", "dry_run")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    dry_run: bool
    def __init__(self, plan: _Optional[bytes] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class LearningRunRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class LearningRunView(_message.Message):
    __slots__ = ("name", "batch", "jobs", "started_at", "result", "warnings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    batch: str
    jobs: int
    started_at: float
    result: bytes
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., batch: _Optional[str] = ..., jobs: _Optional[int] = ..., started_at: _Optional[float] = ..., result: _Optional[bytes] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ListLearningRunsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLearningRunsReply(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[LearningRunView]
    def __init__(self, runs: _Optional[_Iterable[_Union[LearningRunView, _Mapping]]] = ...) -> None: ...
