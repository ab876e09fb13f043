"""Batches of image jobs: handing over a plan, following what becomes of it, fetching the images."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read, read_event
from corral.core.errors import (
    ArtifactPruned,
    BlobNotFound,
    CorralError,
    Forbidden,
    JobNotFound,
    Unavailable,
)
from corral.core.job import Workload
from corral.sdk.bridge import Bridged, bridged, one_by_one, shared_bridge
from corral.sdk.files import downloads
from corral.sdk.handles import AsyncHandle, value, within
from corral.sdk.images.plan_files import whole_plan
from corral.sdk.transport.connection import ClientCalls, Connection

Plan = Mapping[str, Any] | str | os.PathLike[str]
"""As it stands in a plan file, or where that file is."""
AT_ONCE = 8
"""How many files are fetched side by side."""
PAGE = 500
IMAGE = re.compile(r"\.(png|json)$")
"""The artifacts of an image job: images, and a replay card beside each."""
NO_FILE = frozenset(
    {errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ}
)
"""Errors for a name that no file can have here, or that another file is in the way of."""


class AsyncBatchHandle:
    """One batch, for as long as somebody is interested in it. It holds nothing open by itself."""

    def __init__(
        self,
        connection: Connection,
        batch: str,
        *,
        jobs: int = 0,
        estimate_s: float | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self.id = batch
        self.count = jobs
        """How many jobs it was built of; 0 of one that was opened by its name."""
        self.estimate_s = estimate_s
        """About how long it takes, if nothing else ran; None where nobody knows."""
        self.warnings = warnings
        self._connection = connection
        self._workload = Workload.PIPELINE if jobs else ""
        """Decides how results are read; empty: to be asked."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def progress(self) -> views.BatchView:
        """How far it is: by state, by worker, and about how long it still takes."""
        request = pb.BatchRequest(batch=self.id)
        return await self._connection.ask(views.BatchView, "GetBatch", request)

    async def wait(self, timeout: float | None = None) -> views.BatchView:  # noqa: ASYNC109
        """Until all of it has ended. TimeoutError leaves it running."""
        async with within(timeout, f"The batch {self.id}"):
            async for _ in self.ends():
                pass
        return await self.progress()

    async def ends(self) -> AsyncGenerator[views.Ended, None]:
        """How each of its jobs ended, in the order in which they do."""
        count = (await self.progress()).jobs
        seen = set[str]()
        watched = self._connection.watch(batch=self.id)
        async with contextlib.aclosing(watched) as lists:
            async for messages in lists:
                for event in map(read_event, messages):
                    if isinstance(event, views.Ended) and event.job_id not in seen:
                        seen.add(event.job_id)
                        yield event
                if len(seen) >= count:
                    return

    async def results(self) -> AsyncIterator[tuple[str, Any]]:
        """Each job's id and what it returned, as they end; an error in its place where it failed.
        For an image job that says which images there are, and how long each stage took."""
        async for ended in self.ends():
            workload = self._workload
            if not workload:
                workload = (await AsyncHandle(self._connection, ended.job_id).status()).workload
            try:
                yield ended.job_id, await value(self._connection, ended, workload)
            except CorralError as error:
                yield ended.job_id, error

    async def jobs(self, states: Sequence[str] = ()) -> list[views.JobView]:
        """All of them, or those in these states, in the order in which they were submitted."""
        found: list[views.JobView] = []
        while True:
            before = found[-1].job_id if found else ""
            request = pb.ListJobsRequest(batch=self.id, limit=PAGE, before=before, states=states)
            reply = await self._connection.call("ListJobs", request)
            found += [read(job) for job in reply.jobs]
            if len(reply.jobs) < PAGE:
                return found[::-1]

    async def images(self) -> list[views.ImageView]:
        """Every image that there is by now, in the order of the jobs."""
        return [one for one in await self._files() if one.name.endswith(".png")]

    async def _files(self) -> list[views.ImageView]:
        """Images and their cards, also of jobs that have more than a list shows."""
        found: list[views.ImageView] = []
        for job in await self.jobs():
            if job.more_artifacts:
                every = AsyncHandle(self._connection, job.job_id).artifacts()
                job = replace(job, artifacts=await every)
            found += images_of(job)
        return found

    async def download(
        self,
        folder: str | os.PathLike[str],
        progress: Callable[[int, int], object] | None = None,
        left_out: Callable[[views.ImageView, Exception], object] | None = None,
        *,
        overwrite: bool = False,
    ) -> list[tuple[views.ImageView, Path]]:
        """Fetches images and their replay cards into a folder, and leaves out what is there
        already, byte for byte. Asked again, it goes on where it was. What is no longer there, has
        a name that no file can have here, or would take another file's place without `overwrite`,
        is told to `left_out` and costs no other."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        wanted = await self._files()
        slots, done = asyncio.Semaphore(AT_ONCE), 0

        async def fetch(one: views.ImageView) -> tuple[views.ImageView, Path] | None:
            nonlocal done
            try:
                async with slots:
                    path = downloads.place(target, _name(one))
                    blob = (one.job_id, one.name, one.file_sha256)
                    await downloads.fetch(self._connection, *blob, path, overwrite=overwrite)
            except (BlobNotFound, ArtifactPruned, JobNotFound, Forbidden, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_FILE:
                    raise
                if left_out is not None:
                    left_out(one, error)
                return None
            finally:
                done += 1
                if progress is not None:
                    progress(done, len(wanted))
            return one, path

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(fetch(one)) for one in wanted]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [found for task in tasks if (found := task.result()) is not None]

    async def cancel(self) -> int:
        """Cancels everything of it that lives; how many."""
        request = pb.BatchRequest(batch=self.id)
        return int((await self._connection.call("CancelBatch", request)).cancelled)


class BatchHandle(Bridged[AsyncBatchHandle]):
    """One batch of a synchronous program."""

    def __init__(self, handle: AsyncBatchHandle) -> None:
        super().__init__(handle)
        self.id, self.count = handle.id, handle.count
        self.estimate_s, self.warnings = handle.estimate_s, handle.warnings

    def __repr__(self) -> str:
        return f"<BatchHandle {self.id}>"

    progress = bridged(AsyncBatchHandle.progress)
    wait = bridged(AsyncBatchHandle.wait)
    jobs = bridged(AsyncBatchHandle.jobs)
    images = bridged(AsyncBatchHandle.images)
    download = bridged(AsyncBatchHandle.download)
    cancel = bridged(AsyncBatchHandle.cancel)

    def results(self) -> Iterator[tuple[str, Any]]:
        """Each job's id and what it returned, as they end; an error in its place where it failed.
        For an image job that says which images there are, and how long each stage took."""
        return shared_bridge().each(one_by_one(self._asynchronous.results()))


async def build(
    connection: Connection,
    plan: Plan,
    *,
    key: str | None = None,
    dry_run: bool = False,
    before: Callable[[AsyncBatchHandle], object] | None = None,
) -> tuple[AsyncBatchHandle, list[dict[str, Any]]]:
    """Hands a plan over; `before` hears what it means before any of it is submitted. The key makes
    an interrupted call safe to repeat. With `dry_run`: records, and a batch without a name."""
    whole = await whole_plan(connection, plan)
    request = pb.BuildBatchRequest(
        plan=json.dumps(whole).encode(), dry_run=dry_run, key=key or os.urandom(16).hex()
    )
    patience = connection.patience()
    while True:
        batch, lines = AsyncBatchHandle(connection, ""), list[bytes]()
        try:
            async with contextlib.aclosing(connection.stream("BuildBatch", request)) as replies:
                async for reply in replies:
                    if reply.records:
                        lines.append(reply.records)
                    else:
                        batch = AsyncBatchHandle(
                            connection,
                            reply.batch,
                            jobs=reply.jobs,
                            estimate_s=reply.estimate_s if reply.HasField("estimate_s") else None,
                            warnings=tuple(reply.warnings),
                        )
                        if before is not None:
                            before(batch)
                            before = None
            if not dry_run and not batch.id:
                raise Unavailable("The controller hung up before it had answered.")
        except CorralError as error:
            await patience.pause(error)
            continue
        return batch, [json.loads(line) for line in b"".join(lines).splitlines()]


def images_of(job: views.JobView) -> list[views.ImageView]:
    """Images of a job and their cards, by name."""
    return [
        views.ImageView(job.job_id, one.name, one.size, one.file_sha256, job.worker)
        for one in sorted(job.artifacts, key=lambda one: one.name)
        if job.workload == Workload.PIPELINE and IMAGE.search(one.name)
    ]


def _name(image: views.ImageView) -> str:
    """What it is called in a folder. A name without the id of its job, or a hidden one, is not one
    that Corral gave, and might be another job's: it gets a folder."""
    name = image.name
    ours = image.job_id in name and not name.startswith(".")
    return name if ours else f"{image.job_id}/{name}"


class AsyncPresets(ClientCalls):
    """`client.presets` of an AsyncClient: bases of plans that are kept under a name."""

    async def save(self, name: str, base: Mapping[str, Any]) -> views.PresetView:
        """Keeps settings by stage under this name, in the place of older ones."""
        request = pb.SavePresetRequest(name=name, value=json.dumps(base).encode())
        return await self._connection.ask(views.PresetView, "SavePreset", request)

    async def list(self) -> list[views.PresetView]:
        reply = await self._connection.call("ListPresets", pb.ListPresetsRequest())
        return [read(one) for one in reply.presets]

    async def get(self, name: str) -> dict[str, Any]:
        """The settings that are kept under this name."""
        reply = await self._connection.call("GetPreset", pb.PresetRequest(name=name))
        found: dict[str, Any] = json.loads(reply.value)
        return found

    async def remove(self, name: str) -> views.PresetView:
        request = pb.PresetRequest(name=name)
        return await self._connection.ask(views.PresetView, "RemovePreset", request)


class Presets(Bridged[AsyncPresets]):
    """`client.presets` of a Client."""

    save = bridged(AsyncPresets.save)
    list = bridged(AsyncPresets.list)
    get = bridged(AsyncPresets.get)
    remove = bridged(AsyncPresets.remove)
