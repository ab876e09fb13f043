"""The table of who may do what: a role for every gRPC method and every route of REST.

What is missing here is refused: the application does not start with a route that has no role.
"""

from __future__ import annotations

from corral.core.access import Role

READ, SUBMIT, ADMIN = Role.READ, Role.SUBMIT, Role.ADMIN

METHODS: dict[str, Role] = {
    "SubmitJob": SUBMIT,
    "SubmitJobs": SUBMIT,
    "WatchJobs": READ,
    "GetJobStatus": READ,
    "ListJobs": READ,
    "CancelJob": SUBMIT,
    "CancelBatch": SUBMIT,
    "RetryJob": SUBMIT,
    "MoveToFront": SUBMIT,
    "ExplainJob": READ,
    "ListWorkers": READ,
    "ChangeWorker": ADMIN,
    "RevokeWorker": ADMIN,
    "Invite": ADMIN,
    "ListJoinRequests": ADMIN,
    "ConfirmJoin": ADMIN,
    "GetQueue": READ,
    "PauseQueue": ADMIN,
    "ResumeQueue": ADMIN,
    "CreateToken": ADMIN,
    "ListTokens": ADMIN,
    "RevokeToken": ADMIN,
    "Backup": ADMIN,
    "SetSecret": ADMIN,
    "ListSecrets": ADMIN,
    "RemoveSecret": ADMIN,
    "HealthCheck": READ,
    "PutPackage": SUBMIT,
    "FindAsset": SUBMIT,
    "PutAsset": SUBMIT,
    "GetBlob": READ,
    "RateJob": SUBMIT,
    "ListLearnings": READ,
}

ROUTES: dict[tuple[str, str], Role] = {
    ("GET", "/openapi.json"): READ,
    ("GET", "/metrics"): READ,
    ("GET", "/cluster/status"): READ,
    ("POST", "/jobs"): SUBMIT,
    ("GET", "/jobs"): READ,
    ("GET", "/jobs/{job}"): READ,
    ("POST", "/jobs/{job}/cancel"): SUBMIT,
    ("POST", "/jobs/{job}/retry"): SUBMIT,
    ("POST", "/jobs/{job}/front"): SUBMIT,
    ("GET", "/jobs/{job}/why"): READ,
    ("GET", "/jobs/{job}/events"): READ,
    ("GET", "/jobs/{job}/output"): READ,
    ("GET", "/jobs/{job}/result"): READ,
    ("GET", "/jobs/{job}/artifacts"): READ,
    ("GET", "/jobs/{job}/artifacts/{name:path}"): READ,
    ("PUT", "/packages"): SUBMIT,
    ("POST", "/assets"): SUBMIT,
    ("PUT", "/assets"): SUBMIT,
    ("GET", "/batches"): READ,
    ("GET", "/batches/{batch:path}"): READ,
    ("POST", "/batches/{batch:path}/cancel"): SUBMIT,
    ("GET", "/workers"): READ,
    ("GET", "/workers/{name}"): READ,
    ("PATCH", "/workers/{name}"): ADMIN,
    ("DELETE", "/workers/{name}"): ADMIN,
    ("POST", "/invitations"): ADMIN,
    ("GET", "/queue"): READ,
    ("POST", "/queue/pause"): ADMIN,
    ("POST", "/queue/resume"): ADMIN,
    ("GET", "/tokens"): ADMIN,
    ("POST", "/tokens"): ADMIN,
    ("DELETE", "/tokens/{name}"): ADMIN,
    ("POST", "/jobs/{job}/rating"): SUBMIT,
    ("GET", "/learnings"): READ,
}
