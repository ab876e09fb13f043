"""`corral show`: one job, or one batch, in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import completion, output
from corral.cli.terminal.arguments import AsJson, client_of_this_home, find, find_batch
from corral.core.errors import JobNotFound
from corral.core.text import in_grace, size_of

if TYPE_CHECKING:
    from corral.contract.views import BatchView, JobView
    from corral.sdk.images.batches import BatchHandle


def show(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="A job id, the beginning of one, last, or a batch.",
            autocompletion=completion.jobs,
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="A batch, until it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """One job, or one batch, in full."""
    with client_of_this_home() as client:
        try:
            view = find(client, job).status()
        except JobNotFound as error:
            _show_batch(*find_batch(client, job, error), follow=follow, as_json=as_json)
            return
    if as_json:
        output.show_json(view)
    else:
        output.show_pairs(_pairs(view))


def _pairs(view: JobView) -> list[tuple[str, str]]:
    progress, failure = view.progress, view.failure
    artifacts = [f"{a.name}  {size_of(a.size)}  {a.uri}".rstrip() for a in view.artifacts]
    if view.more_artifacts:
        artifacts.append("… and more before these")
    return [
        ("job", view.job_id),
        ("name", view.name),
        ("state", view.state),
        *_rendered(view),
        ("attempt", str(view.attempt or "")),
        ("worker", view.worker),
        ("silent", in_grace(view.worker, view.worker_silent_s) if view.worker_silent_s else ""),
        ("devices", ", ".join(view.devices)),
        ("class", f"{view.queue_class}, priority {view.priority}"),
        ("user", view.user),
        ("batch", view.batch),
        ("labels", ", ".join(f"{key}={value}" for key, value in view.labels.items())),
        ("retry of", view.retry_of),
        ("correlation", view.correlation_id),
        ("submitted", output.ago(view.submitted_at)),
        ("started", output.ago(view.started_at)),
        ("ended after", "" if view.ended or not view.duration else output.span(view.duration)),
        ("ended", output.ago(view.ended_at)),
        ("took", output.span(view.seconds) if view.ended and view.attempt else ""),
        ("progress", _progress(progress, view)),
        ("checkpoint", _checkpoint(view)),
        ("result", size_of(view.result.size) if view.result else ""),
        ("artifacts", "\n".join(artifacts)),
        ("warnings", "\n".join(view.warnings)),
        ("failure", f"{failure.code}: {failure.type or failure.message}" if failure else ""),
        ("message", failure.message if failure and failure.type else ""),
        ("traceback", failure.traceback if failure else ""),
    ]


def _rendered(view: JobView) -> list[tuple[str, str]]:
    """What an image job is to make."""
    from corral.sdk.images.record_words import described

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


def _show_batch(batch: BatchHandle, view: BatchView, *, follow: bool, as_json: bool) -> None:
    from corral.cli.images import batch as batching

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
    if any(view.states.get(state) for state in batching.FAILED):
        told = batching.reasons(batch.jobs(batching.FAILED))
        output.show("\n" + "\n".join(told))


def _checkpoint(view: JobView) -> str:
    """What a retry goes on from."""
    if view.last_checkpoint is None or view.state == "succeeded":
        return ""
    return f"{size_of(view.last_checkpoint.size)}, {output.ago(view.last_checkpoint.at)}"


def _progress(progress: Any, view: JobView) -> str:
    """How far it is or was; of what succeeded only its figures, for it came to the end."""
    if progress is None:
        return ""
    if view.state == "succeeded":
        from msgspec.structs import replace

        progress = replace(progress, fraction=None, message="")
    share = f"{progress.fraction * 100:.0f} %" if progress.fraction is not None else ""
    metrics = ", ".join(f"{name} {value:g}" for name, value in sorted(progress.metrics.items()))
    step = f"step {progress.step}" if progress.step is not None else ""
    return "  ".join(part for part in (share, progress.message, step, metrics) if part)
