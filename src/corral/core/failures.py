"""How attempts fail. The code of a failure decides what happens next; this table is the rule."""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    JOB = "job"
    """The job's own doing: again only as often as its `retries` allow."""
    MEMORY = "memory"
    """Out of memory: again within `retries`, and on a GPU job only where there is more VRAM."""
    BAD_JOB = "bad_job"
    """It would fail the same way everywhere: fail now."""
    ELSEWHERE = "elsewhere"
    """This worker lacks something: another worker may have it."""
    WORKER = "worker"
    """The worker's doing: again elsewhere, as often as the policy allows."""
    SERVER = "server"
    """An image server was silent before the job had begun there: it waits for one that answers."""


CLASSES: dict[str, FailureClass] = {
    "exception": FailureClass.JOB,
    "exit_code": FailureClass.JOB,
    "no_result": FailureClass.JOB,
    "killed_by_signal": FailureClass.JOB,
    "cancelled": FailureClass.JOB,  # a job that is stopping ends cancelled, whatever the code
    "out_of_memory": FailureClass.MEMORY,
    "bad_job": FailureClass.BAD_JOB,
    "over_duration": FailureClass.BAD_JOB,
    "unpicklable_result": FailureClass.BAD_JOB,
    "result_refused": FailureClass.BAD_JOB,
    "bad_package": FailureClass.BAD_JOB,
    "environment_failed": FailureClass.BAD_JOB,
    "wrong_document": FailureClass.BAD_JOB,
    "secret_missing": FailureClass.BAD_JOB,
    "secret_in_result": FailureClass.BAD_JOB,
    "damaged": FailureClass.BAD_JOB,
    "python_unavailable": FailureClass.ELSEWHERE,
    "workload_refused": FailureClass.ELSEWHERE,
    "path_refused": FailureClass.ELSEWHERE,
    "path_missing": FailureClass.ELSEWHERE,
    "model_missing": FailureClass.ELSEWHERE,
    "stage_missing": FailureClass.ELSEWHERE,
    "backend_mismatch": FailureClass.ELSEWHERE,
    "asset_missing": FailureClass.ELSEWHERE,
    "asset_corrupt": FailureClass.ELSEWHERE,
    "asset_no_room": FailureClass.ELSEWHERE,
    "process_died": FailureClass.WORKER,
    "transfer_failed": FailureClass.WORKER,
    "worker_lost": FailureClass.WORKER,
    "worker_stopping": FailureClass.WORKER,
    "backend_down": FailureClass.WORKER,
    "backend_silent": FailureClass.SERVER,
}


def classify(code: str) -> FailureClass:
    """Codes of a newer worker that we do not know yet are taken as the job's own doing."""
    return CLASSES.get(code, FailureClass.JOB)
