"""`corral batch` and `corral rerun`: images from a plan, followed to their end, and once more."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, JobArgument, client_of_this_home, find
from corral.core.errors import Conflict
from corral.core.text import printable

if TYPE_CHECKING:
    from rich.console import Group

    from corral.contract.views import BatchView, JobView, WorkerView
    from corral.sdk.images.batches import AsyncBatchHandle

LOOK_S = 0.5
"""How often a batch that is followed is looked at."""
TOLD = 0.1
"""Without a terminal: the share of jobs that has to end before the next line."""
FAILED = ("failed", "rejected")
SHOWN = 3
"""Reasons of failures that are told."""
LONGEST = 300
ANYWHERE = ("", "auto", "local")
BACKENDS = ("webui", "comfyui", "diffusers", "sketch")


def batch(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, YAML or JSON.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the records as JSON lines, submit nothing.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Show it until its end, or return at once.")
    ] = True,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key again is the same batch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Renders the images of a plan on all workers, as one batch."""
    if not plan.is_file():
        raise FileNotFoundError(2, "There is no such plan file", str(plan))
    if dry_run:
        asyncio.run(_preview(plan))
        return
    raise typer.Exit(asyncio.run(_batch(plan, key, follow=follow, as_json=as_json)))


async def _preview(plan: Path) -> None:
    from corral.sdk.aio import AsyncClient
    from corral.sdk.images import batches

    async with AsyncClient() as client:
        built, records = await batches.build(client._connection, plan, dry_run=True)
    output.warn(built.warnings)
    for record in records:
        output.show_json_line(record)
    output.say(f"{_meant(built)} Nothing was submitted.")


async def _batch(plan: Path, key: str | None, *, follow: bool, as_json: bool) -> int:
    from corral.sdk.aio import AsyncClient
    from corral.sdk.images import batches

    async with AsyncClient() as client:
        built, _ = await batches.build(
            client._connection, plan, key=key, before=lambda built: output.say(_meant(built))
        )
        output.warn(built.warnings)
        output.say(f"Submitted as {built.id}.")
        if follow:
            code = await follow_batch(built, as_json=as_json)
            if code is not None:
                return code
        if as_json:
            told = {"batch": built.id, "jobs": built.count, "estimate_s": built.estimate_s}
            output.show_json({**told, "warnings": built.warnings})
        elif not follow:
            output.show(built.id)
        return 0


async def follow_batch(handle: AsyncBatchHandle, *, as_json: bool) -> int | None:
    """Shows a batch until it ends; the exit code. Ctrl-C leaves it running: None."""
    left = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C just ends the command
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, left.set)
    live = sys.stderr.isatty() and not as_json
    view = await (_live if live else _plainly)(handle, left, quiet=as_json)
    if view is None:
        output.say(
            f"{handle.id} goes on. Come back with `corral show {handle.id} --follow`, fetch what "
            f"there is with `corral images --batch {handle.id}`."
        )
        return None if as_json else 0
    if as_json:
        output.show_json(view)
    else:
        output.show(summary(view))
        if any(view.states.get(state) for state in FAILED):
            told = reasons(await handle.jobs(FAILED))
            output.show("\n".join(told))
    return 0 if view.states.get("succeeded", 0) == view.jobs else 1


def follow_again(batch: str, *, as_json: bool) -> int:
    """A batch that was submitted before, until it ends; the exit code."""

    async def following() -> int:
        from corral.sdk.aio import AsyncClient

        async with AsyncClient() as client:
            return await follow_batch(client.open_batch(batch), as_json=as_json) or 0

    return asyncio.run(following())


async def _looks(handle: AsyncBatchHandle, left: asyncio.Event) -> Any:
    """The batch again and again, to its end or until the person leaves."""
    while not left.is_set():
        view = await handle.progress()
        yield view
        if view.ended:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await left.wait()


async def _live(handle: AsyncBatchHandle, left: asyncio.Event, *, quiet: bool) -> BatchView | None:
    from rich.console import Console
    from rich.live import Live

    view, pace = None, Pace()
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as screen:
        async for view in _looks(handle, left):
            pace.add(view)
            screen.update(table(view, pace), refresh=True)
    return view if view is not None and view.ended else None


async def _plainly(
    handle: AsyncBatchHandle, left: asyncio.Event, *, quiet: bool
) -> BatchView | None:
    view, told, pace = None, -TOLD, Pace()
    async for view in _looks(handle, left):
        pace.add(view)
        if not quiet and not view.ended and view.done >= told + TOLD:
            told = view.done
            output.say(f"{_counts(view)}; {pace.told(view)}")
    return view if view is not None and view.ended else None


class Pace:
    """How fast a batch goes, by what was seen of it lately."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def add(self, view: BatchView) -> None:
        self._seen.append((time.monotonic(), round(view.done * view.jobs)))
        del self._seen[:-120]

    @property
    def per_s(self) -> float:
        (began, before), (now, done) = self._seen[0], self._seen[-1]
        return (done - before) / (now - began) if now > began else 0.0

    def told(self, view: BatchView) -> str:
        if not self.per_s:
            left = view.left_s
        else:
            left = (view.jobs - round(view.done * view.jobs)) / self.per_s
        rate = f"{self.per_s * 60:.1f} jobs/min" if self.per_s else "no pace yet"
        return f"{rate}, {f'about {output.span(left)} left' if left is not None else 'ETA unknown'}"


def table(view: BatchView, pace: Pace) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from corral.cli.terminal.bar import render

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("WORKER", "DONE", "FAILED", "RUNNING", "SECONDS EACH", "SWITCHES"):
        shown.add_column(column, justify="left" if column == "WORKER" else "right")
    for one in view.workers:
        ended = one.succeeded + one.failed
        each = f"{one.seconds / ended:.2f}" if ended else ""
        numbers = (one.succeeded, one.failed, one.running, each, one.model_switches)
        shown.add_row(Text(printable(one.worker)), *map(str, numbers))
    title = Text(printable(f"{view.batch}: {_counts(view)}"))
    bar = Text(render(view.done, pace.told(view), output.terminal_width()))
    return Group(title, *([shown] if view.workers else []), bar)


def summary(view: BatchView) -> str:
    took = view.ended_at - view.submitted_at
    pace = f", {view.jobs / took * 60:.1f} jobs/min" if took > 0 else ""
    where = ", ".join(f"{one.worker} {one.succeeded}" for one in view.workers if one.succeeded)
    fetch = f"`corral images --batch {view.batch} --out DIR` fetches the images; "
    lines = [
        f"{view.batch}: {_counts(view)} in {output.span(took)}{pace}; {switched(view)}.",
        f"By worker: {where}." if where else "",
        f"{fetch if where else ''}`corral jobs --batch {view.batch}` lists the jobs.",
    ]
    return printable("\n".join(line for line in lines if line))


def reasons(jobs: Iterable[JobView]) -> list[str]:
    """Why jobs of a batch failed: a line for each of the most frequent reasons, and what to do."""
    failed = [job for job in jobs if job.failure is not None]
    alike = Counter((job.failure.code, job.failure.message) for job in failed if job.failure)
    told = [
        f"{count} failed with {code}: {message[:LONGEST]}{'…' * (len(message) > LONGEST)}"
        for (code, message), count in alike.most_common(SHOWN)
    ]
    if len(alike) > SHOWN:
        told.append(f"There are {len(alike) - SHOWN} more reasons.")
    if failed:
        told.append(f"`corral retry {failed[0].batch}` tries them again.")
    return told


def switched(view: BatchView) -> str:
    count = view.model_switches
    return f"{count or 'no'} model switch{'es' * (count != 1)}"


def _counts(view: BatchView) -> str:
    told = [f"{view.states.get('succeeded', 0)} of {view.jobs} done"]
    for state in ("failed", "cancelled", "rejected", "running", "stopping"):
        if view.states.get(state):
            told.append(f"{view.states[state]} {state}")
    waiting = view.states.get("queued", 0) + view.states.get("placed", 0)
    return ", ".join([*told, f"{waiting} waiting"] if waiting else told)


def _meant(built: AsyncBatchHandle) -> str:
    """How much it is, and about how long it takes."""
    told = "how long it takes is unknown: nothing like it was made here yet, or nobody can now"
    if built.estimate_s is not None:
        told = f"about {output.span(built.estimate_s)} if nothing else runs"
    return f"{built.count:,} job{'s' * (built.count != 1)}, {told}."


# --- once more ---------------------------------------------------------------------------------


def rerun(
    job: JobArgument,
    worker: Annotated[
        str, typer.Option(help="Where: a worker's name, same for the first one's, or auto.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Renders a job's images again and says whether their pixels are the same."""
    from corral.core.job import Workload

    with client_of_this_home() as client:
        first = find(client, job)
        before = first.status()
        if before.workload != Workload.PIPELINE:
            raise Conflict(
                f"Job {before.job_id} made no images; only an image job is rendered again. `corral "
                f"retry {before.job_id}` runs it once more."
            )
        if before.state != "succeeded":
            raise Conflict(
                f"Job {before.job_id} is {before.state}; there are no pixels to compare with. "
                f"`corral retry {before.job_id}` tries it again."
            )
        old = first.result()
        where = before.worker if worker == "same" else worker
        backend = _backend(old)
        if backend and not offers(client.workers(), where, backend):
            output.warn([_cannot(where, backend)])
            backend = ""
        again = first.retry(worker=where, apart=True, backend=backend)
        if not as_json:
            output.say(f"{again.id} renders {before.job_id} again …", style="dim")
        new = again.result()
        after = again.status()
    if _backend(old) not in (backend, _backend(new)):
        output.warn([f"It was {_backend(old)} then and {_backend(new) or 'unknown'} now."])
    compared = compare(old, new)
    same = bool(compared) and all(one["same"] for one in compared)
    if as_json:
        told = {"job_id": after.job_id, "rerun_of": before.job_id, "same": same}
        output.show_json({**told, "workers": [before.worker, after.worker], "images": compared})
    else:
        for one in compared:
            if not one["same"]:
                became = f"{one['before'] or 'none'} became {one['after'] or 'none'}"
                output.show(f"{one['index']}: {became}")
        output.show(_verdict(same, before, after, len(compared)))
    raise typer.Exit(0 if same else 1)


def offers(workers: Iterable[WorkerView], where: str, backend: str) -> bool:
    """Whether somebody renders so, of those that it may be."""
    able = [one for one in workers if backend in one.task_types]
    return any(where in (*ANYWHERE, one.name, one.id) for one in able)


def _backend(result: Any) -> str:
    backend = result.get("backend") if isinstance(result, dict) else None
    return backend if isinstance(backend, str) and backend in BACKENDS else ""


def _cannot(where: str, backend: str) -> str:
    nobody = "No worker renders" if where in ANYWHERE else f"{where} does not render"
    return f"{nobody} with {backend}, as the first time: another backend makes other pixels."


def compare(old: Any, new: Any) -> list[dict[str, Any]]:
    """Each image's pixels then and now. A result is its worker's word, in any form."""
    pairs = zip_longest(_pixels(old), _pixels(new), fillvalue="")
    return [
        {"index": index, "before": was, "after": now, "same": bool(was) and was == now}
        for index, (was, now) in enumerate(pairs)
    ]


def _pixels(result: Any) -> list[str]:
    images = result.get("images") if isinstance(result, dict) else None
    if not isinstance(images, list):
        return []
    return [
        str(one.get("pixel_sha256", ""))[:64] if isinstance(one, dict) else "" for one in images
    ]


def _verdict(same: bool, before: JobView, after: JobView, count: int) -> str:
    images = f"{count} image{'s' * (count != 1)}"
    where = (
        f"on {after.worker} again"
        if before.worker == after.worker
        else f"on {before.worker} and on {after.worker}"
    )
    found = "The same pixels" if same else "Other pixels"
    return f"{found}: {images} {where} ({before.job_id}, {after.job_id})."
