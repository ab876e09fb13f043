"""/jobs: submit, list, show, change, explain; and the bytes they name: /packages and /assets."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import BYTES, answer, body, body_of, errors, json
from corral.api.rest.bodies import JobBody, JobsBody, Submission, submissions_of
from corral.api.rest.routing import caller_of
from corral.api.submissions import jobs_of
from corral.api.views import explanation_view, shown, shown_in_full, views_of
from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read
from corral.controller.history.listing import JobFilters
from corral.controller.jobs.retrying import Retry
from corral.core.access import Role
from corral.core.errors import InvalidRequest
from corral.core.job import QueueClass

SHOWN = 100
"""Up to so many submitted jobs are shown at once; of more only the ids."""


class Submitted(msgspec.Struct):
    """Durable from now on. `jobs` shows them where there are at most 100."""

    job_ids: list[str]
    jobs: list[views.JobView]
    warnings: list[str]


class JobPage(msgspec.Struct):
    """Newest first. `next` is the cursor of the page behind this one, null on the last."""

    jobs: list[views.JobView]
    next: str | None


class StoredPackage(msgspec.Struct):
    sha256: str
    size: int


class AssetBody(msgspec.Struct, forbid_unknown_fields=True):
    """A file that is about to be sent, or one of the shared root."""

    sha256: str = ""
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    path: str = ""


class FoundAsset(msgspec.Struct):
    """Known: name it in `inputs`. If not: PUT its bytes to `put_url`, or to /assets if that is
    empty."""

    known: bool
    sha256: str
    size: int
    path: str = ""
    put_url: str = ""


class StoredAsset(msgspec.Struct):
    sha256: str
    size: int


_BODY = body(JobBody, JobsBody, example={"script": {"source": "print(6 * 7)"}, "gpus": 1})
Moment = Annotated[str, Query(description="Seconds since the epoch, or ISO 8601.", max_length=64)]


def routes(parts: Parts) -> list[APIRouter]:
    jobs, assets = routing.router(parts, "jobs"), routing.router(parts, "assets")
    _submitting(jobs, parts)
    _listing(jobs, parts)
    _one_job(jobs, parts)
    _retry(jobs, parts)
    _packages(jobs, parts)
    _assets(assets, parts)
    return [jobs, assets]


def _submitting(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/jobs",
        status_code=202,
        summary="Submit one job or many",
        responses={202: answer(Submitted, "Accepted, durably."), **errors(408, 409, 413, 507)},
        openapi_extra=_BODY,
    )
    async def submit(
        request: Request,
        idempotency_key: Annotated[
            str, Header(description="The same key again is the same job.", max_length=400)
        ] = "",
    ) -> Response:
        """All of them or none. Without a class a job is `interactive`: refused at once where no
        known worker could run it, unless it says `wait`."""
        data = await incoming.whole(request, parts.limits)
        sent = submissions_of(body_of(data, Submission), idempotency_key)
        many = pb.SubmitJobsRequest(jobs=sent)
        jobs = jobs_of(many, QueueClass.INTERACTIVE, parts.limits, caller_of(request))
        accepted = await parts.queue.submit(jobs)
        ids = [one.job for one in accepted]
        few = [read(shown(parts, job)) for job in ids] if len(ids) <= SHOWN else []
        warnings = sorted({one.warning for one in accepted if one.warning})
        return json(Submitted(ids, few, warnings), 202)


def _listing(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/jobs",
        summary="List jobs, newest first",
        responses={200: answer(JobPage, "One page.")},
    )
    async def listed(
        state: Annotated[list[str], Query(description="Repeatable: any of them.")] = [],  # noqa: B006
        active: Annotated[bool, Query(description="Only what has not ended.")] = False,
        queue_class: Annotated[str, Query(alias="class")] = "",
        worker: Annotated[str, Query(description="A worker's name or id.")] = "",
        batch: str = "",
        label: Annotated[
            list[str], Query(description="`key=value` or `key`. Repeatable: all of them.")
        ] = [],  # noqa: B006
        user: str = "",
        since: Moment = "",
        until: Moment = "",
        text: Annotated[str, Query(description="In the name, the id, or what went wrong.")] = "",
        limit: Annotated[int, Query(ge=1)] = 100,
        cursor: Annotated[str, Query(description="`next` of the page before.")] = "",
    ) -> Response:
        """Pages stay as they are while new jobs come: those are before the first."""
        filters = JobFilters.checked(
            states=state,
            active=active,
            queue_class=queue_class,
            worker=worker,
            batch=batch,
            labels=tuple(label),
            user=user,
            since=moment("since", since),
            until=moment("until", until),
            text=text,
        )
        if cursor and not (cursor.isascii() and cursor.isalnum()):
            raise InvalidRequest(f"{cursor[:80]!r} is no cursor; use `next` of a page.")
        limit = min(limit, parts.limits.page)
        found = await parts.listing.page(filters, before=cursor, limit=limit + 1)
        page = found[:limit]
        jobs = [read(one) async for one in views_of(parts, page)]
        return json(JobPage(jobs, page[-1] if len(found) > limit else None))


def _one_job(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/jobs/{job}",
        summary="One job",
        responses={200: answer(views.JobView, "As `corral show --json`."), **errors(404)},
    )
    async def show(job: str) -> Response:
        """By its id, an unambiguous beginning of it, or `last`."""
        found = await parts.queue.find(job)
        return json(read(shown_in_full(parts, found)))

    @router.post(
        "/jobs/{job}/cancel",
        summary="Cancel a job, waiting or running",
        responses={200: answer(views.JobView, "Asked to end."), **errors(404, 409, 507)},
    )
    async def cancel(job: str) -> Response:
        found = await parts.queue.find(job)
        await parts.queue.cancel(found)
        return json(read(shown(parts, found)))

    @router.post(
        "/jobs/{job}/extend",
        summary="Give a job more time",
        responses={
            200: answer(views.JobView, "With its `duration`."),
            **errors(404, 409, 422, 507),
        },
    )
    async def extend(
        job: str, by: Annotated[float, Query(description="Seconds more.")]
    ) -> Response:
        """One that waits or runs, in this attempt and in those that follow."""
        found = await parts.queue.find(job)
        await parts.queue.extend(found, by)
        return json(read(shown(parts, found)))

    @router.post(
        "/jobs/{job}/front",
        summary="Move a waiting job to the front of its line",
        responses={200: answer(views.JobView, "It is next."), **errors(404, 409, 507)},
    )
    async def front(job: str) -> Response:
        """Before all others of its class and priority, also after a restart."""
        found = await parts.queue.find(job)
        await parts.queue.to_front(found)
        return json(read(shown(parts, found)))

    @router.get(
        "/jobs/{job}/why",
        summary="Why a job waits, runs where it runs, or ended as it did",
        responses={200: answer(views.Explanation, "With a reason for each worker."), **errors(404)},
    )
    async def why(job: str) -> Response:
        found = await parts.queue.find(job)
        return json(read(explanation_view(parts, found)))


def _retry(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/jobs/{job}/retry",
        status_code=202,
        summary="Submit an ended job again, as a new one",
        responses={202: answer(views.JobView, "The new job."), **errors(404, 409, 413, 422, 507)},
    )
    async def retry(
        request: Request,
        job: str,
        worker: Annotated[str, Query(description="The only one that may have it.")] = "",
        apart: Annotated[bool, Query(description="Not as part of the first one's batch.")] = False,
        from_start: Annotated[bool, Query(description="Not from its last checkpoint.")] = False,
        duration: Annotated[float | None, Query(description="In seconds, anew.")] = None,
        retries: Annotated[int | None, Query(description="Further tries, anew.")] = None,
        memory_gb: Annotated[float | None, Query(description="Memory, anew.")] = None,
        backend: Annotated[str, Query(description="The kind that renders its images.")] = "",
    ) -> Response:
        """One that did not succeed goes on from its last checkpoint."""
        caller = caller_of(request)
        asked = Retry.asked(
            user=None if caller.role is Role.ADMIN else caller.name,
            is_owners=caller.is_owner,
            worker=worker,
            apart=apart,
            from_start=from_start,
            duration_s=duration,
            retries=retries,
            memory_gb=memory_gb,
            backend=backend,
        )
        again = await parts.queue.retry(await parts.queue.find(job), asked)
        return json(read(shown(parts, again)), 202)


def _packages(router: APIRouter, parts: Parts) -> None:
    @router.put(
        "/packages",
        status_code=201,
        summary="Store bytes ahead of the jobs that name them",
        responses={201: answer(StoredPackage, "Stored."), **errors(408, 413, 507)},
        openapi_extra=BYTES,
    )
    async def put_package(
        request: Request,
        sha256: Annotated[str, Query(description="Refused if the bytes have another.")] = "",
    ) -> Response:
        parts.queue.check_room()
        pieces, limit = incoming.pieces(request, parts.limits), parts.package_limit
        blob = await parts.blobs.put(pieces, limit=limit, expected=sha256 or None)
        return json(StoredPackage(blob.sha256, blob.size), 201)


def _assets(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/assets",
        summary="Whether an input file is here, and where it goes if not",
        responses={200: answer(FoundAsset, "Here or not."), **errors(404, 408, 413, 507)},
        openapi_extra=body(AssetBody),
    )
    async def find(request: Request) -> Response:
        asked = body_of(await incoming.whole(request, parts.limits), AssetBody)
        found = await parts.assets.find(asked.sha256, asked.size, asked.path)
        if found is not None:
            return json(FoundAsset(True, found.sha256, found.size, found.path))
        parts.queue.check_room()
        put_url = await parts.assets.place(asked.sha256, asked.size)
        return json(FoundAsset(False, asked.sha256, asked.size, put_url=put_url))

    @router.put(
        "/assets",
        status_code=201,
        summary="Store an input file",
        responses={201: answer(StoredAsset, "Stored."), **errors(408, 413, 507)},
        openapi_extra=BYTES,
    )
    async def put(
        request: Request,
        sha256: Annotated[str, Query(description="Refused if the bytes have another.")] = "",
    ) -> Response:
        parts.queue.check_room()
        pieces = incoming.pieces(request, parts.limits)
        blob = await parts.assets.put(pieces, expected=sha256 or None)
        return json(StoredAsset(blob.sha256, blob.size), 201)


def moment(name: str, text: str) -> float:
    if not text:
        return 0.0
    try:
        try:
            moment = float(text)
        except ValueError:
            moment = datetime.fromisoformat(text).timestamp()
        if math.isfinite(moment) and moment >= 0:
            return moment
    except (ValueError, OverflowError, OSError):
        pass
    raise InvalidRequest(f"{name} is seconds since the epoch or ISO 8601; got {text[:64]!r}.")
