"""The command `corral`: which commands there are. What they do is loaded when they are called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from corral import __version__
from corral.cli.terminal import output
from corral.joining import invitation

COMMANDS = {
    "up": "controller.up",
    "down": "controller.up",
    "status": "controller.up",
    "run": "jobs.run",
    "submit": "jobs.run",
    "put": "jobs.put",
    "batch": "images.batch",
    "images": "images.images",
    "rerun": "images.batch",
    "presets": "images.presets",
    "jobs": "jobs.jobs",
    "batches": "jobs.jobs",
    "show": "jobs.show",
    "logs": "jobs.jobs",
    "get": "jobs.get",
    "why": "jobs.jobs",
    "cancel": "jobs.cancel",
    "retry": "jobs.cancel",
    "extend": "jobs.cancel",
    "front": "jobs.cancel",
    "workers": "workers.workers",
    "worker": "workers.join",
    "invite": "workers.worker",
    "login": "workers.worker",
    "logout": "workers.worker",
    "queue": "controller.queue",
    "token": "controller.token",
    "learn": "images.learn",
    "rate": "images.learn",
    "learnings": "images.learn",
    "bench": "controller.bench",
    "simulate": "controller.simulate",
    "secret": "controller.secret",
    "config": "controller.up",
    "doctor": "controller.doctor",
    "backup": "controller.backup",
    "restore": "controller.backup",
    "repair": "controller.up",
}
"""The module of each, in the order of the help."""
GROUPS = frozenset({"presets", "worker", "queue", "token", "secret"})
"""Commands that have commands: the `app` of their module."""
SCRIPTS = frozenset({"run", "submit"})
"""Everything behind the script belongs to the script, options too."""


def _version(asked: bool) -> None:
    if asked:
        output.show(f"corral {__version__}")
        raise typer.Exit


def corral(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """One place to send GPU work to."""


def build(only: str = "") -> output.Commands:
    """All commands, or one alone: loading the others takes longer than most of them do."""
    app = output.Commands(
        name="corral",
        help="Corral: one place to send GPU work to.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(corral)
    for name in [only] if only in COMMANDS else COMMANDS:
        module = import_module(f"corral.cli.{COMMANDS[name]}")
        if name in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            settings = {"allow_interspersed_args": False} if name in SCRIPTS else None
            app.command(context_settings=settings)(getattr(module, name))
    return app


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
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        build(asked)()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
