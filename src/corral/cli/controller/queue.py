"""`corral queue`: how long it is, pausing it, going on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home

if TYPE_CHECKING:
    from corral.contract.views import QueueView

app = output.Commands(help="The queue: how long it is, pausing it, going on.", no_args_is_help=True)


@app.command("status")
def queue_status(as_json: AsJson = False) -> None:
    """How many jobs wait by class, and whether the queue is paused."""
    _show_queue(client_of_this_home().admin.queue(), as_json)


@app.command("pause")
def queue_pause(as_json: AsJson = False) -> None:
    """Starts nothing new, also after a restart; what workers hold goes on."""
    _show_queue(client_of_this_home().admin.pause(), as_json)


@app.command("resume")
def queue_resume(as_json: AsJson = False) -> None:
    """Goes on after a pause."""
    _show_queue(client_of_this_home().admin.resume(), as_json)


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
