"""Every error a caller can meet, with the stable code that names it on every road; docs/errors.md
says when each comes, and what to do.

CorralError
├── InvalidJob     TooManyLabels, TooManyVariables, TooManyRequirements, TooManySecrets,
│                  TooManyArguments, TooManyInputs, TooManyModels, TextTooLong, AssetNotFound
├── InvalidPlan    EmptyStagePlan, StageWithoutImage
├── TooLarge       BodyTooLarge, DocumentTooLarge, PackageTooLarge, ResultTooLarge,
│                  ArtifactTooLarge, AssetTooLarge, TooManyJobs, TooManyRecords
├── StorageFailed  DiskFull
├── JobError       JobFailed, JobCancelled, JobRejected
└── all others
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class CorralError(Exception):
    """Root of the tree. `code` is API; the message says what happened and what to do next."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, job_id: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.job_id = job_id
        self.details = dict(details or {})

    def view(self) -> dict[str, Any]:
        """The same shape over REST, gRPC and `--json`."""
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                "job_id": self.job_id,
                "details": self.details,
            }
        }


class InvalidJob(CorralError):
    code, status = "invalid_job", 422


class TooManyLabels(InvalidJob):
    code = "too_many_labels"


class TooManyVariables(InvalidJob):
    code = "too_many_variables"


class TooManyRequirements(InvalidJob):
    code = "too_many_requirements"


class TooManySecrets(InvalidJob):
    code = "too_many_secrets"


class TooManyModels(InvalidJob):
    code = "too_many_models"


class TooManyArguments(InvalidJob):
    code = "too_many_arguments"


class TooManyInputs(InvalidJob):
    code = "too_many_inputs"


class AssetNotFound(InvalidJob):
    code, status = "asset_not_found", 404


class TextTooLong(InvalidJob):
    code = "text_too_long"


class InvalidPlan(CorralError):
    code, status = "invalid_plan", 422


class EmptyStagePlan(InvalidPlan):
    code = "empty_stage_plan"


class StageWithoutImage(InvalidPlan):
    code = "stage_without_image"


class PresetNotFound(CorralError):
    code, status = "preset_not_found", 404


class PackNotFound(CorralError):
    code, status = "pack_not_found", 404


class InvalidRequest(CorralError):
    code, status = "invalid_request", 422


class NotFound(CorralError):
    code, status = "not_found", 404


class MethodNotAllowed(CorralError):
    code, status = "method_not_allowed", 405


class BatchNotFound(CorralError):
    code, status = "batch_not_found", 404


class WorkerNotFound(CorralError):
    code, status = "worker_not_found", 404


class TokenNotFound(CorralError):
    code, status = "token_not_found", 404


class LearningRunNotFound(CorralError):
    code, status = "learning_run_not_found", 404


class RangeNotSatisfiable(CorralError):
    code, status = "range_not_satisfiable", 416


class RequestTimeout(CorralError):
    code, status = "request_timeout", 408


class TooManyStreams(CorralError):
    code, status = "too_many_streams", 429


class HeadersTooLarge(CorralError):
    code, status = "headers_too_large", 431


class InvalidSettings(CorralError):
    code, status = "invalid_settings", 422


class JobNotFound(CorralError):
    code, status = "job_not_found", 404


class BlobNotFound(CorralError):
    code, status = "blob_not_found", 404


class ArtifactPruned(CorralError):
    code, status = "artifact_pruned", 410


class SecretNotFound(CorralError):
    code, status = "secret_not_found", 404


class InvalidSecret(CorralError):
    code, status = "invalid_secret", 422


class Conflict(CorralError):
    code, status = "conflict", 409


class NoGpuWorkers(CorralError):
    code, status = "no_gpu_workers", 503


class ExceedsAllWorkers(CorralError):
    code, status = "exceeds_all_workers", 503


class TooLarge(CorralError):
    code, status = "too_large", 413


class BodyTooLarge(TooLarge):
    code = "body_too_large"


class DocumentTooLarge(TooLarge):
    code = "document_too_large"


class PackageTooLarge(TooLarge):
    code = "package_too_large"


class ResultTooLarge(TooLarge):
    code = "result_too_large"


class ArtifactTooLarge(TooLarge):
    code = "artifact_too_large"


class AssetTooLarge(TooLarge):
    code = "asset_too_large"


class TooManyJobs(TooLarge):
    code = "too_many_jobs"


class TooManyRecords(TooLarge):
    code = "too_many_records"


class Unauthorized(CorralError):
    code, status = "unauthorized", 401


class Forbidden(CorralError):
    code, status = "forbidden", 403


class WrongCertificate(CorralError):
    code, status = "wrong_certificate", 403


class Unavailable(CorralError):
    code, status = "unavailable", 503


class StorageFailed(CorralError):
    code, status = "storage_failed", 507

    fatal = False
    """Set where it is unknown what reached the disk: only a restart can tell."""


class DiskFull(StorageFailed):
    code, status = "disk_full", 507


class JournalDamaged(CorralError):
    code, status = "journal_damaged", 500


class BackupRefused(CorralError):
    code, status = "backup_refused", 422


class HomeUnusable(CorralError):
    code, status = "home_unusable", 500


class JobError(CorralError):
    """The job ended without a result; `failure` says why, with the remote traceback."""

    code, status = "job_error", 500

    failure: Any = None
    """The core.job.Failure of its last attempt, where there is one."""
    remote_traceback: str = ""


class JobFailed(JobError):
    code, status = "job_failed", 500


class JobCancelled(JobError):
    code, status = "job_cancelled", 409


class JobRejected(JobError):
    code, status = "job_rejected", 503


def _all(root: type[CorralError]) -> list[type[CorralError]]:
    return [root, *(found for child in root.__subclasses__() for found in _all(child))]


BY_CODE: dict[str, type[CorralError]] = {cls.code: cls for cls in reversed(_all(CorralError))}


def from_view(view: Mapping[str, Any]) -> CorralError:
    """The error a client raises for what a controller answered."""
    error = view.get("error", {})
    cls = BY_CODE.get(str(error.get("code")), CorralError)
    return cls(
        str(error.get("message", "unknown error")),
        job_id=error.get("job_id"),
        details=error.get("details") or {},
    )
