"""The command `corral`: which commands there are. What they do is loaded when they are called."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from corral import __version__, invitation
from corral.cli import (
    batching,
    bench,
    controlling,
    get,
    herding,
    imaging,
    joining,
    keeping,
    learning,
    output,
    presetting,
    putting,
    queue,
    running,
    secret,
    show,
    simulating,
    steering,
    token,
    watching,
    workers,
)
from corral.cli import doctor as doctors

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

app.command()(controlling.up)
app.command()(controlling.down)
app.command()(controlling.status)
app.command(context_settings=_SCRIPT)(running.run)
app.command(context_settings=_SCRIPT)(running.submit)
app.command()(putting.put)
app.command()(batching.batch)
app.command()(imaging.images)
app.command()(batching.rerun)
app.add_typer(presetting.app, name="presets")
app.command()(watching.jobs)
app.command()(watching.batches)
app.command()(show.show)
app.command()(watching.logs)
app.command()(get.get)
app.command()(watching.why)
app.command()(steering.cancel)
app.command()(steering.retry)
app.command()(steering.front)
app.command()(workers.workers)
herding.worker.command()(joining.join)
herding.worker.command()(joining.run)
herding.worker.command()(joining.leave)
app.add_typer(herding.worker, name="worker")
app.command()(herding.invite)
app.command()(herding.login)
app.command()(herding.logout)
app.add_typer(queue.app, name="queue")
app.add_typer(token.app, name="token")
app.command()(learning.learn)
app.command()(learning.rate)
app.command()(learning.learnings)
app.command()(bench.bench)
app.command()(simulating.simulate)
app.add_typer(secret.app, name="secret")
app.command()(controlling.config)
app.command()(doctors.doctor)
app.command()(keeping.backup)
app.command()(keeping.restore)
app.command()(controlling.repair)


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
