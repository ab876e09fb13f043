"""Who waits for a turn at a server, over all processes of this worker: a file for each, locked as
long as its writer lives. First come, first served, but that jobs of the loaded model go before
others for a while: a change of models takes longer than most images.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from corral.locks import lock_file

PASSED_S = 60.0
"""Who has waited so long is passed by nobody: as in the queue (`aging_s`)."""
LONGEST = 512


class WaitingLine:
    def __init__(self, path: str, model: str | None) -> None:
        self._folder, name = os.path.split(path)
        self._prefix = f"{name}.waits-"
        self._model = model
        """None: it needs no other than the one that is loaded."""
        self._fd = -1
        self._name = ""

    def is_first(self, loaded: str) -> bool:
        """`loaded`: the server's model, as far as we know."""
        try:
            if self._fd < 0:
                return not self._others("")
            return not self._before_us(loaded)
        except OSError:
            return True

    def join(self) -> None:
        """Once. Where that cannot be, as on Windows, whoever comes first is served."""
        if self._fd < 0:
            with suppress(OSError):
                self._join()

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            for name in (self._name, f".{self._name}"):  # the other one, where it was not renamed
                with suppress(OSError):
                    os.unlink(os.path.join(self._folder, name))
            self._fd = -1

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.leave()

    def _join(self) -> None:
        self._name = f"{self._prefix}{time.time_ns():020}-{os.getpid()}-{id(self)}"
        begun = os.path.join(self._folder, f".{self._name}")
        self._fd = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        lock_file(self._fd)  # before it has the name by which it is found
        os.write(self._fd, ("" if self._model is None else self._model)[:LONGEST].encode())
        os.rename(begun, os.path.join(self._folder, self._name))

    def _others(self, us: str) -> list[str]:
        found = sorted(one for one in os.listdir(self._folder) if one.startswith(self._prefix))
        return [one for one in found if one != us and self._since(one)]

    def _before_us(self, loaded: str) -> bool:
        ours = self._place(self._name, self._model, loaded)
        for name in self._others(self._name):
            model = self._waiting(name)
            if model is not None and self._place(name, model or None, loaded) < ours:
                return True
        return False

    def _place(self, name: str, model: str | None, loaded: str) -> tuple[bool, str]:
        overdue = time.time_ns() - self._since(name) > PASSED_S * 1e9
        return not (overdue or model is None or model == loaded), name

    def _since(self, name: str) -> int:
        """0 where nobody of ours made that name: others may write where runners share a folder."""
        told = name.removeprefix(self._prefix).partition("-")[0]
        return int(told) if told.isascii() and told.isdigit() else 0

    def _waiting(self, name: str) -> str | None:
        """What it wants; None where nobody waits there any more."""
        path = os.path.join(self._folder, name)
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            if lock_file(fd):  # its writer died
                with suppress(OSError):
                    os.unlink(path)
                return None
            return os.read(fd, 4 * LONGEST).decode(errors="replace")
        finally:
            os.close(fd)
