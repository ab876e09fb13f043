"""Who may do what: a role for every gRPC method and every route of REST. What has none is refused:
the application does not start with such a route."""

from __future__ import annotations

from corral.core.access import Role

READ, SUBMIT, ADMIN = Role.READ, Role.SUBMIT, Role.ADMIN

_METHODS = {
    READ: (
        *("WatchJobs", "GetJobStatus", "ListJobs", "ExplainJob", "GetBlob", "ListArtifacts"),
        *("GetBatch", "ListBatches", "ListPresets", "GetPreset"),
        *("ListLearnings", "GetLearningRun", "ListLearningRuns"),
        *("ListWorkers", "GetQueue", "HealthCheck"),
    ),
    SUBMIT: (
        *("SubmitJob", "SubmitJobs", "CancelJob", "CancelBatch", "RetryJob", "ExtendJob"),
        "MoveToFront",
        *("PutPackage", "FindAsset", "PutAsset"),
        *("BuildBatch", "SavePreset", "RemovePreset", "RateJob", "StartLearningRun"),
    ),
    ADMIN: (
        *("ChangeWorker", "RevokeWorker", "Invite", "ListJoinRequests", "ConfirmJoin"),
        *("PauseQueue", "ResumeQueue", "Backup"),
        *("CreateToken", "ListTokens", "RevokeToken", "SetSecret", "ListSecrets", "RemoveSecret"),
    ),
}
METHODS = {method: role for role, methods in _METHODS.items() for method in methods}

_ROUTES = {
    READ: (
        *(
            "GET /openapi.json",
            "GET /corral.proto",
            "GET /metrics",
            "GET /cluster/status",
            "GET /queue",
        ),
        *("GET /jobs", "GET /jobs/{job}", "GET /jobs/{job}/why", "GET /jobs/{job}/events"),
        *("GET /jobs/{job}/output", "GET /jobs/{job}/result"),
        *("GET /jobs/{job}/artifacts", "GET /jobs/{job}/artifacts/{name:path}"),
        *("GET /batches", "GET /batches/{batch:path}"),
        *("GET /presets", "GET /presets/{name}"),
        *("GET /workers", "GET /workers/{name}"),
        *("GET /wheels/", "GET /wheels/{name}"),
        *("GET /learnings", "GET /learning-runs", "GET /learning-runs/{name}"),
    ),
    SUBMIT: (
        *("POST /jobs", "POST /jobs/{job}/cancel", "POST /jobs/{job}/retry"),
        *("POST /jobs/{job}/extend", "POST /jobs/{job}/front", "POST /jobs/{job}/rating"),
        *("PUT /packages", "POST /assets", "PUT /assets"),
        *("POST /batches", "POST /batches/{batch:path}/cancel"),
        *("PUT /presets/{name}", "DELETE /presets/{name}"),
        "POST /learning-runs",
    ),
    ADMIN: (
        *("PATCH /workers/{name}", "DELETE /workers/{name}", "POST /invitations"),
        *("POST /queue/pause", "POST /queue/resume"),
        *("GET /tokens", "POST /tokens", "DELETE /tokens/{name}"),
    ),
}
ROUTES = {route: role for role, routes in _ROUTES.items() for route in routes}
