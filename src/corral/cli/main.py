"""The command `corral`: which commands there are. What they do is loaded when they are called."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from corral import __version__
from corral.cli.controller import backup, bench, queue, secret, simulate, token, up
from corral.cli.controller import doctor as doctors
from corral.cli.images import batch, images, learn, presets
from corral.cli.jobs import cancel, get, jobs, put, run, show
from corral.cli.terminal import output
from corral.cli.workers import join, worker, workers
from corral.joining import invitation

app = typer.Typer(
    name="corral",
    help="Corral: one place to send GPU work to.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        output.show(f"corral {__version__}")
        raise typer.Exit


@app.callback()
def corral(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """One place to send GPU work to."""


# Everything behind the script belongs to the script, options too.
_SCRIPT = {"allow_interspersed_args": False}

app.command()(up.up)
app.command()(up.down)
app.command()(up.status)
app.command(context_settings=_SCRIPT)(run.run)
app.command(context_settings=_SCRIPT)(run.submit)
app.command()(put.put)
app.command()(batch.batch)
app.command()(images.images)
app.command()(batch.rerun)
app.add_typer(presets.app, name="presets")
app.command()(jobs.jobs)
app.command()(jobs.batches)
app.command()(show.show)
app.command()(jobs.logs)
app.command()(get.get)
app.command()(jobs.why)
app.command()(cancel.cancel)
app.command()(cancel.retry)
app.command()(cancel.front)
app.command()(workers.workers)
worker.worker.command()(join.join)
worker.worker.command()(join.run)
worker.worker.command()(join.leave)
app.add_typer(worker.worker, name="worker")
app.command()(worker.invite)
app.command()(worker.login)
app.command()(worker.logout)
app.add_typer(queue.app, name="queue")
app.add_typer(token.app, name="token")
app.command()(learn.learn)
app.command()(learn.rate)
app.command()(learn.learnings)
app.command()(bench.bench)
app.command()(simulate.simulate)
app.add_typer(secret.app, name="secret")
app.command()(up.config)
app.command()(doctors.doctor)
app.command()(backup.backup)
app.command()(backup.restore)
app.command()(up.repair)


def _hide_invitation() -> None:
    """Begins anew without the invitation that somebody gave as an argument: every process of the
    machine can read the arguments of all others."""
    commands = (["worker", "join"], ["login"])
    if sys.platform == "win32" or not any(sys.argv[1:][: len(one)] == one for one in commands):
        return
    given = [word for word in sys.argv[1:] if f"{invitation.SCHEME}://" in word]
    if given:
        kept = [word for word in sys.orig_argv if word not in given]
        os.execve(sys.executable, kept, {**os.environ, invitation.VARIABLE: given[-1]})  # noqa: S606


def main() -> None:
    _hide_invitation()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
