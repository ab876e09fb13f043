"""What an answer that is no image means. Read from its body: the server's statuses mean little.

`backend_down` has the server started again, so it is only for what that may heal.
"""

from __future__ import annotations

import json
from typing import Any

from corral.runtime.pipeline.backend import NO_MEMORY, StageFailed, excerpt

MEMORY_WORDS = (*NO_MEMORY, "cannot allocate memory", "video memory", "memoryerror")
LACKING = (
    "could not find checkpoint",
    "no checkpoints found",
    "could not find upscaler",
    "sampler not found",
)
STARTED_WRONG = {
    "not implemented for 'half'": "On a machine without GPU, start it with --use-cpu all "
    "--skip-torch-cuda-test --no-half --precision full.",
    "settings is disabled": "Start it without --freeze-settings.",
}
BROKEN = ("cuda error", "hip error", "cudnn", "cublas", "device-side assert", "driver")
"""The card or its driver, not the request: it stays so until the server is started again."""
CLIENT = ("validationerror", "requestvalidationerror", "httpexception")
SAID = 400
"""Characters of a server's own words that are passed on."""


def of_answer(url: str, status: int, text: str) -> StageFailed:
    body = _body(text)
    words = _words(body, text)
    said = words.lower()
    told = f"The WebUI at {url} answered {status}: {excerpt(words, SAID) or 'nothing'}"
    if status in (401, 403):
        return StageFailed(
            "stage_missing",
            f"The WebUI at {url} wants another username or password ({status}). Put those of its "
            "--api-auth into worker.backends as `username` and `password`.",
        )
    if any(mark in said for mark in MEMORY_WORDS):
        return StageFailed("out_of_memory", told)
    if body.get("detail") == "Not Found":
        return StageFailed(
            "stage_missing",
            f"The WebUI at {url} has no API. Start it with --api, or correct the url in "
            "worker.backends.",
        )
    for mark, remedy in STARTED_WRONG.items():
        if mark in said:
            return StageFailed("stage_missing", f"{told}. {remedy}")
    if any(mark in said for mark in LACKING) or ("model" in said and "not found" in said):
        return StageFailed("model_missing", told)
    if "script" in said and "not found" in said:
        return StageFailed("stage_missing", told)
    if any(mark in said for mark in BROKEN):
        return StageFailed("backend_down", f"{told}. Start it again.")
    if not body:  # whatever stands in front of it, or something else altogether
        return StageFailed("backend_down" if status >= 500 else "stage_missing", told)
    if status == 422 or str(body.get("error", "")).lower() in CLIENT:
        return StageFailed("bad_job", told)
    return StageFailed("exception", told)


def _body(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(body: dict[str, Any], text: str) -> str:
    """`error` is the kind of exception, `errors` its message, `detail` an HTTPException's."""
    parts = (body.get(name) for name in ("error", "errors", "detail"))
    words = [part if isinstance(part, str) else json.dumps(part) for part in parts if part]
    return ": ".join(dict.fromkeys(words)) or text.strip()
