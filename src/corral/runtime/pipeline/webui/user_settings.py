"""The settings of a server's user, which our requests override and must leave as they were.

The server itself undoes an override only for settings that stand in its configuration. Of the
others, what they were is noted with the turn before a request: the note outlives whoever wrote it,
and the next one to have the turn gives back what is still as that request had it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui import payloads
from corral.runtime.pipeline.webui.errand import STOPPING_S, Errand
from corral.runtime.pipeline.webui.server import Late, ServerState, WebUIServer
from corral.runtime.pipeline.webui.stock import ServerStock
from corral.runtime.pipeline.webui.turn import Turn

FORMAT, MODEL = "samples_format", "sd_model_checkpoint"
BEHIND_S = 2.0
"""How long a result waits for somebody else's image that began right behind it: the next turn may
give back as well."""


class UserSettings:
    def __init__(self, server: WebUIServer, stock: ServerStock) -> None:
        self._server, self._stock = server, stock
        self.names: frozenset[str] | None = None
        """Those that we override and the server knows; an unknown one is an error to it."""

    def forget(self) -> None:
        self.names = None

    def borrow(self, errand: Errand, turn: Turn, state: ServerState) -> frozenset[str]:
        """Nothing is read where the last thing that the server did was a request of ours: then all
        that we override stands in its configuration."""
        note = turn.read()
        same = bool(state.began) and state.began == note.get("settled")
        if self.names is not None and state.idle and same:
            return self.names
        turn.write(settled="")
        if note.get("user"):
            self._give_back(errand.idle, turn)
        options = self._read(errand.idle)
        user = {name: options[name] for name in payloads.OVERRIDDEN if name in options}
        if MODEL not in user:
            raise StageFailed(
                "backend_mismatch", f"The WebUI at {self._server.url} has no setting for its model."
            )
        self.names = frozenset(user)
        turn.write(user=user, ours={})
        wanted = payloads.FIXED[FORMAT]
        if user.get(FORMAT, wanted) != wanted:
            # Images are put into files after the overrides are undone.
            turn.write(ours={FORMAT: wanted})
            errand.call("options", self._whole({FORMAT: wanted}, options))
        return self.names

    def lend(self, turn: Turn, overrides: dict[str, Any]) -> None:
        """Before each request."""
        note = turn.read()
        if note.get("user") and not overrides.items() <= note["ours"].items():
            turn.write(ours={**note["ours"], **overrides})

    def give_back(self, errand: Errand, turn: Turn) -> None:
        """On every way out. What cannot be given back now is left to the next turn."""
        note = turn.read()
        patience_s = STOPPING_S if errand.stopping.is_set() else BEHIND_S
        with suppress(StageFailed, Late):
            if note.get("user"):
                self._give_back(lambda: errand.quiet(patience_s), turn)
                if MODEL not in note["ours"] or FORMAT not in note["user"]:
                    return
                if note["user"][FORMAT] != note["ours"].get(FORMAT):
                    return  # to be changed each time
            elif not note.get("settled"):
                return
            turn.write(settled=errand.ended_began)

    def give_back_left(self, turn: Turn) -> None:
        """What a request of one who was killed has left there. Nobody waits for it: what cannot be
        given back now is left to the next look."""
        note = turn.read()
        if not note.get("user"):
            return
        with suppress(StageFailed, Late):
            if note.get("busy") and not self._server.state().idle:
                self._server.interrupt()
            else:
                self._give_back(self._idle, turn)

    def _idle(self) -> ServerState:
        state = self._server.state()
        if not state.idle:
            raise Late
        return state

    def _give_back(self, idle: Any, turn: Turn) -> None:
        note = turn.read()
        user, ours = note["user"], note.get("ours") or {}
        if ours:
            options = self._read(idle)
            back = {
                name: value
                for name, value in user.items()
                if name in ours and value is not None and options.get(name) == ours[name] != value
            }
            if not self._stock.takes(str(back.get(MODEL) or "")):
                back.pop(MODEL, None)  # it would be refused
            if back:
                self._server.change(self._whole(back, options))
        turn.write(user=None, ours=None)

    def _whole(self, changed: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """A Forge forgets its model where it is not named."""
        if payloads.MODULES in options and options.get(MODEL) is not None:
            return {MODEL: options[MODEL], **changed}
        return changed

    def _read(self, idle: Any) -> dict[str, Any]:
        """While a request is in force, also while one that was interrupted unwinds, its overrides
        look like the user's choice."""
        while True:
            before = idle()
            options: dict[str, Any] = self._server.get("options")
            after = idle()
            if before.began == after.began:
                return options


def give_back_left(options: dict[str, Any], folder: str) -> None:
    """By whoever looks after a server where no job comes any more."""
    server = WebUIServer(options["url"], options["username"], options["password"])
    turn = Turn(server.url, folder)
    try:
        if turn.take():  # else somebody works there, and gives back
            UserSettings(server, ServerStock(server)).give_back_left(turn)
    finally:
        turn.release()
        server.close()
