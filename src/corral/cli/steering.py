"""Steering: cancel and retry, the front of the line, the queue's pause, and tokens of clients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli import output
from corral.cli.finding import find
from corral.cli.watching import AsJson, JobsArgument
from corral.core.errors import CorralError, JobNotFound

if TYPE_CHECKING:
    from corral.contract.views import JobView, QueueView, TokenView
    from corral.sdk.batches import BatchHandle
    from corral.sdk.client import Client, Handle

queue = typer.Typer(help="The queue: how long it is, pausing it, going on.", no_args_is_help=True)
token = typer.Typer(help="Tokens of clients, each with a name and a role.", no_args_is_help=True)


def _client() -> Client:
    from corral.sdk.client import Client

    return Client()


JobsOrBatches = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help="Job ids, beginnings of them, last, or batches."),
]
AGAIN = ("failed", "rejected", "cancelled")


@output.guarded
def cancel(job: JobsOrBatches, as_json: AsJson = False) -> None:
    """Cancels jobs, waiting or running, or all of a batch."""
    from corral.contract.plain import plain

    told: list[Any] = []
    with _client() as client:
        for word in job:
            try:
                told.append(plain(find(client, word).cancel()))
            except JobNotFound as error:
                batch = _batch(client, word, error)
                told.append({"batch": batch.id, "cancelled": batch.cancel()})
    if as_json:
        output.show_json(told)
        return
    for one in told:
        if "batch" in one and "job_id" not in one:
            count = one["cancelled"]
            output.show(f"{one['batch']}: {count} job{'s' * (count != 1)} cancelled")
        else:
            output.show(f"{one['job_id']} {one['state']}")


@output.guarded
def retry(job: JobsOrBatches, as_json: AsJson = False) -> None:
    """Submits ended jobs again, each as a new job; of a batch those that did not succeed."""
    handles: list[tuple[Handle, str]] = []
    with _client() as client:
        for word in job:
            try:
                handles.append((find(client, word).retry(), word))
            except JobNotFound as error:
                batch = _batch(client, word, error)
                lost = _unsuccessful(batch.jobs())
                handles += [(client.job(one).retry(), one) for one in lost]
                if not lost:
                    output.say(f"Nothing of {batch.id} failed that was not tried again.")
    if as_json:
        output.show_json([{"job_id": handle.id, "retry_of": one} for handle, one in handles])
        return
    for warning in dict.fromkeys(one for handle, _ in handles for one in handle.warnings):
        output.say(warning, style="yellow")
    for handle, _ in handles:
        output.show(handle.id)


def _batch(client: Client, name: str, error: JobNotFound) -> BatchHandle:
    """The batch of this name; where there is none, it was a job that was meant."""
    found = client.open_batch(name)
    try:
        found.progress()
    except CorralError:
        raise error from None
    return found


def _unsuccessful(jobs: Sequence[JobView]) -> list[str]:
    """Those that nobody has tried again yet."""
    again = {job.retry_of for job in jobs}
    return [job.job_id for job in jobs if job.state in AGAIN and job.job_id not in again]


@output.guarded
def front(job: JobsArgument, as_json: AsJson = False) -> None:
    """Moves waiting jobs to the front of their line, the first one named first."""
    from corral.contract.plain import plain

    with _client() as client:
        found = [find(client, one) for one in job]
        views = [handle.to_front() for handle in reversed(found)][::-1]
    if as_json:
        output.show_json([plain(view) for view in views])
        return
    for view in views:
        output.show(f"{view.job_id} is next in its line")


@queue.command("status")
@output.guarded
def queue_status(as_json: AsJson = False) -> None:
    """How many jobs wait by class, and whether the queue is paused."""
    with _client() as client:
        _show_queue(client.admin.queue(), as_json)


@queue.command("pause")
@output.guarded
def queue_pause(as_json: AsJson = False) -> None:
    """Starts nothing new, also after a restart; what workers hold goes on."""
    with _client() as client:
        _show_queue(client.admin.pause(), as_json)


@queue.command("resume")
@output.guarded
def queue_resume(as_json: AsJson = False) -> None:
    """Goes on after a pause."""
    with _client() as client:
        _show_queue(client.admin.resume(), as_json)


def _show_queue(view: QueueView, as_json: bool) -> None:
    if as_json:
        output.show_json(view)
        return
    output.show_pairs(
        [
            ("queue", output.paused(view) if view.paused else "running"),
            *((one, f"{count:,} waiting") for one, count in sorted(view.waiting.items())),
            ("active", f"{view.active:,}"),
        ]
    )


@token.command("create")
@output.guarded
def token_create(
    name: Annotated[str, typer.Argument(help="Shown as the user of its jobs.")],
    role: Annotated[str, typer.Option(help="read, submit or admin.")] = "submit",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Such as 12h or 30d. [never]")] = "",
    as_json: AsJson = False,
) -> None:
    """Makes a token and prints it, this once."""
    from corral.cli.running import seconds

    with _client() as client:
        made, view = client.admin.create_token(
            name, role, expires_in=seconds(expires, "--expires") if expires else 0.0
        )
    if as_json:
        output.show_json({"token": made, **_plain(view)})
        return
    output.show(made)
    output.say(f"Give it as CORRAL_TOKEN, or as `Authorization: Bearer …`. {_until(view)}")


@token.command("list")
@output.guarded
def token_list(as_json: AsJson = False) -> None:
    """Every token: its name and role, when it was made and until when it is good."""
    with _client() as client:
        found = client.admin.tokens()
    if as_json:
        output.show_json(found)
        return
    if not found:
        output.say("No tokens but the home's own. Make one with `corral token create`.")
        return
    output.show_table(
        ("TOKEN", "ROLE", "MADE", "GOOD"),
        [(one.name, one.role, output.ago(one.created_at), _until(one)) for one in found],
    )


@token.command("revoke")
@output.guarded
def token_revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")], as_json: AsJson = False
) -> None:
    """Makes a token good for nothing."""
    with _client() as client:
        view = client.admin.revoke_token(name)
    if as_json:
        output.show_json(view)
        return
    output.show(f"The token {view.name} is revoked.")


def _until(view: TokenView) -> str:
    if not view.expires_at:
        return "It never expires."
    left = view.expires_at - time.time()
    return f"It expires in {output.span(left)}." if left > 0 else "It has expired."


def _plain(view: TokenView) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(view)
    return found
