"""Looking at jobs and workers: jobs, batches, show, logs, why, workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli import output
from corral.cli.finding import find
from corral.cli.rendering import rendering
from corral.core.errors import CorralError, JobNotFound

if TYPE_CHECKING:
    from corral.contract.views import BatchView, GpuView, JobView, WorkerView
    from corral.sdk.client import Client
    from corral.sdk.submission import Filters

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job id, the beginning of one, or last.")
]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB", help="Job ids, beginnings of them, or last.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def _client() -> Client:
    from corral.sdk.client import Client

    return Client()


@output.guarded
def jobs(
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", help="Only jobs in this state. Repeatable.")
    ] = None,
    batch: Annotated[str, typer.Option(help="Only jobs of this batch.")] = "",
    pack: Annotated[str, typer.Option(help="Only image jobs of this prompt pack.")] = "",
    active: Annotated[
        bool, typer.Option("--active", help="Only jobs that have not ended.")
    ] = False,
    class_: Annotated[str, typer.Option("--class", help="interactive or batch.")] = "",
    worker: Annotated[str, typer.Option(help="Only jobs of this worker.")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label. Repeatable."),
    ] = None,
    user: Annotated[str, typer.Option(help="Only this user's jobs.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Submitted since: 2026-05-01T12:00, or 2h ago: 2h.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Submitted before.")] = "",
    text: Annotated[str, typer.Option(help="In the name, the id or what went wrong.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    all_: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Lists jobs, newest first."""
    from corral.core.errors import InvalidJob
    from corral.core.job import State

    for word in state or ():
        if word not in set(State):
            raise InvalidJob(f"There is no state {word!r}; there are {', '.join(State)}.")
    chosen: Filters = {
        "batch": batch,
        "active": active,
        "queue_class": class_,
        "worker": worker,
        "labels": [*(label or []), *([f"pack={pack}"] if pack else [])],
        "user": user,
        "since": moment("--since", since),
        "until": moment("--until", until),
        "text": text,
    }
    with _client() as client:
        found: list[JobView] = []
        while True:
            size = 1000 if all_ else min(1000, limit - len(found))
            before = found[-1].job_id if found else ""
            page = client.jobs(states=state or (), limit=size, before=before, **chosen)
            found += page
            if len(page) < size or (not all_ and len(found) >= limit):
                break
    if as_json:
        output.show_json([_plain(view) for view in found])
        return
    if not found:
        asked = state or any(chosen.values())
        output.say("No such jobs." if asked else "No jobs yet. Start one with `corral run`.")
        return
    output.show_table(
        ("JOB", "STATE", "NAME", "CLASS", "TRY", "WORKER", "SUBMITTED", "TOOK"),
        [
            (
                view.job_id,
                view.state,
                view.name,
                view.queue_class,
                str(view.attempt or ""),
                view.worker,
                output.ago(view.submitted_at),
                output.span(view.seconds) if view.ended and view.attempt else "",
            )
            for view in found
        ],
        spare=("CLASS", "TRY", "WORKER", "TOOK"),
    )


def moment(option: str, text: str) -> float:
    """Seconds since the epoch for a date and time, or for so long ago."""
    from datetime import datetime

    from corral.cli.running import seconds
    from corral.core.errors import InvalidJob

    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return max(time.time() - seconds(text), 0.001)
    except InvalidJob:
        raise InvalidJob(
            f"{option} is a date and time as 2026-05-01T12:00, or how long ago as 90s, 30m, 12h, "
            f"2d; got {text!r}."
        ) from None


@output.guarded
def show(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="A job id, the beginning of one, last, or a batch."),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="A batch, until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """One job, or one batch, in full."""
    with _client() as client:
        try:
            view = find(client, job).status()
        except JobNotFound as error:
            batch = _batch(client, job)
            if batch is None:
                raise error from None
            _show_batch(client, batch, follow=follow, as_json=as_json)
            return
    if as_json:
        output.show_json(_plain(view))
        return
    progress, failure = view.progress, view.failure
    output.show_pairs(
        [
            ("job", view.job_id),
            ("name", view.name),
            ("state", view.state),
            *_rendered(view),
            ("attempt", str(view.attempt or "")),
            ("worker", view.worker),
            ("devices", ", ".join(view.devices)),
            ("class", f"{view.queue_class}, priority {view.priority}"),
            ("user", view.user),
            ("batch", view.batch),
            ("labels", ", ".join(f"{key}={value}" for key, value in view.labels.items())),
            ("retry of", view.retry_of),
            ("correlation", view.correlation_id),
            ("submitted", output.ago(view.submitted_at)),
            ("started", output.ago(view.started_at)),
            ("ended", output.ago(view.ended_at)),
            ("took", output.span(view.seconds) if view.ended and view.attempt else ""),
            ("progress", _progress(progress)),
            ("result", output.size_of(view.result.size) if view.result else ""),
            (
                "artifacts",
                "\n".join(
                    [
                        *(
                            f"{a.name}  {output.size_of(a.size)}  {a.uri}".rstrip()
                            for a in view.artifacts
                        ),
                        *(["… and more before these"] if view.more_artifacts else []),
                    ]
                ),
            ),
            ("warnings", "\n".join(view.warnings)),
            ("failure", f"{failure.code}: {failure.type or failure.message}" if failure else ""),
            ("message", failure.message if failure and failure.type else ""),
            ("traceback", failure.traceback if failure else ""),
        ]
    )


def _rendered(view: JobView) -> list[tuple[str, str]]:
    """What an image job is to make."""
    from corral.sdk.record_words import described

    if not view.record:
        return []
    told = described(view.record)
    negative = told.pop("negative", "")
    settings = ", ".join(f"{name} {value}" for name, value in told.items())
    return [
        ("prompt", str(view.record["positive"])),
        ("negative", negative),
        ("seed", str(view.record["seed"])),
        ("settings", settings),
    ]


def _batch(client: Client, name: str) -> BatchView | None:
    try:
        return client.open_batch(name).progress()
    except CorralError:
        return None


def _show_batch(client: Client, view: BatchView, *, follow: bool, as_json: bool) -> None:
    from corral.cli import batching, failing

    if follow and not view.ended:
        raise typer.Exit(batching.follow_again(view.batch, as_json=as_json))
    if as_json:
        output.show_json(view)
        return
    left = "" if view.ended or view.left_s is None else f"about {output.span(view.left_s)}"
    output.show_pairs(
        [
            ("batch", view.batch),
            ("jobs", f"{view.jobs:,}"),
            ("states", ", ".join(f"{count} {one}" for one, count in sorted(view.states.items()))),
            ("done", f"{view.done * 100:.0f} %"),
            ("submitted", output.ago(view.submitted_at)),
            ("ended", output.ago(view.ended_at)),
            ("left", left),
            ("models", batching.switched(view)),
        ]
    )
    if view.workers:
        output.show()
        output.show_table(
            ("WORKER", "DONE", "FAILED", "RUNNING", "SECONDS", "SWITCHES"),
            [
                (
                    one.worker,
                    *map(str, (one.succeeded, one.failed, one.running)),
                    f"{one.seconds:.2f}",
                    str(one.model_switches),
                )
                for one in view.workers
            ],
        )
    if any(view.states.get(state) for state in failing.FAILED):
        told = failing.reasons(client.open_batch(view.batch).jobs(failing.FAILED))
        output.show("\n" + "\n".join(told))


def _progress(progress: Any) -> str:
    if progress is None:
        return ""
    share = f"{progress.fraction * 100:.0f} %" if progress.fraction is not None else ""
    metrics = ", ".join(f"{name} {value:g}" for name, value in progress.metrics.items())
    step = f"step {progress.step}" if progress.step is not None else ""
    return "  ".join(part for part in (share, progress.message, step, metrics) if part)


@output.guarded
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a job wrote."""
    from corral.cli.bar import Bar
    from corral.contract.plain import plain_event
    from corral.contract.views import Output

    bar = Bar(enabled=False)
    with _client() as client:
        for event in find(client, job).events(follow=follow):
            if as_json:
                output.show_json_line(plain_event(event))
            elif isinstance(event, Output):
                gap = f"\n[… {event.skipped} bytes left out …]\n" if event.skipped else ""
                bar.write(event.stream, gap.encode() + event.data)


@output.guarded
def why(job: JobArgument, as_json: AsJson = False) -> None:
    """Why a job waits, runs where it runs, or ended as it did."""
    with _client() as client:
        explanation = find(client, job).why()
    if as_json:
        output.show_json(explanation)
        return
    output.show(explanation.summary)
    if explanation.workers:
        output.show()
        output.show_table(
            ("WORKER", "WHY"), [(one.worker, one.reason or "fits") for one in explanation.workers]
        )
    if explanation.history:
        output.show()
        for line in explanation.history:
            output.show(line)


@output.guarded
def batches(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Lists batches, the one with the newest job first."""
    with _client() as client:
        found = client.batches(limit)
    if as_json:
        output.show_json(found)
        return
    if not found:
        output.say("No batches yet. `corral batch PLAN` renders one.")
        return
    rows = [
        (
            one.batch,
            str(one.jobs),
            ", ".join(f"{count} {state}" for state, count in sorted(one.states.items())),
            output.ago(one.submitted_at),
            output.span(one.ended_at - one.submitted_at) if one.ended else "",
        )
        for one in found
    ]
    output.show_table(("BATCH", "JOBS", "STATES", "SUBMITTED", "TOOK"), rows)


@output.guarded
def workers(as_json: AsJson = False) -> None:
    """Each worker: what it has, what runs there, and what its sandbox enforces."""
    with _client() as client:
        found = client.workers()
    if as_json:
        output.show_json(found)
        return
    if not found:
        output.say("No workers yet. `corral up` starts one on this machine.")
        return
    columns = ("WORKER", "STATE", "ENGINE", "CPUS", "MEMORY", "GPUS", "JOBS", "LABELS", "ENFORCED")
    rows = [_worker_row(one) for one in found]
    output.show_table(columns, rows, spare=("ENFORCED", "ENGINE", "LABELS"))
    if output.table_width(columns, rows) > output.terminal_width():
        output.show()
        for row in rows:
            output.show(f"{row[0]} enforces {row[-1]}")
    told = [line for one in found if one.connected for line in rendering(one)]
    if told:
        output.show("\n" + "\n".join(told))


def _gpu(gpu: GpuView) -> str:
    if gpu.lost:
        return f"{gpu.name} {gpu.vram_gb:g} GB, lost by its driver"
    told = f"{gpu.name} {gpu.vram_gb:g} GB, {gpu.free * 100:.0f} % free"
    if gpu.others_gb:
        told += f", {gpu.others_gb:g} GB used by others"
    if gpu.temperature_c is not None:
        told += f", {gpu.temperature_c:.0f} °C"
    if gpu.utilisation is not None:
        told += f", {gpu.utilisation * 100:.0f} % busy"
    return told


def _worker_row(worker: WorkerView) -> tuple[str, ...]:
    gpus = "\n".join(_gpu(one) for one in worker.gpus)
    return (
        worker.name,
        worker_state(worker),
        worker.engine,
        f"{worker.cpus:g}",
        f"{worker.memory_gb:.1f} GB",
        gpus or "none",
        f"{worker.running} running, {worker.waiting} waiting",
        ", ".join(worker.labels),
        ", ".join(f"{what}: {by or 'nothing'}" for what, by in sorted(worker.enforced.items()))
        or "nothing",
    )


def worker_state(worker: WorkerView) -> str:
    if worker.connected:
        return "; ".join(
            filter(None, ("draining" if worker.draining else "connected", worker.circuit))
        )
    state = f"{'stopped' if worker.left else 'last seen'} {output.ago(worker.seen_at)}"
    if worker.draining:
        return f"{state}; takes nothing new when it is back"
    return "; ".join(filter(None, (state, worker.circuit)))


def _plain(view: JobView) -> Any:
    from corral.contract.plain import plain

    return plain(view)
