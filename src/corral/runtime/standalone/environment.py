"""Where the job's code runs: this process's interpreter, or an environment that uv makes once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.runtime import endings, failures
from corral.runtime.environments import kit, uv
from corral.runtime.failures import AttemptFailed
from corral.runtime.process import system
from corral.runtime.standalone.run_directories import locked
from corral.runtime.standalone.ticket import AttemptTicket

TAIL = 4000


@dataclass(frozen=True)
class StandaloneEnvironment:
    python: str
    path: str
    base: str
    """Where the interpreter itself lives; jobs must be able to read it."""
    kit: str
    """What the runner brings into it: the folder of Corral and cloudpickle."""


def prepared(
    document: dict[str, Any],
    ticket: AttemptTicket,
    folder: str,
    say: Callable[[str], None],
    abandoned: threading.Event,
) -> StandaloneEnvironment:
    """AttemptFailed where it cannot be made, or is `abandoned`: from then on the steps of a build
    are killed by others. In `folder` environments are kept."""
    python = document.get("python") or uv.own_minor()
    requirements = uv.normal(document.get("requirements", ()))
    if document["work"]["type"] == "pipeline" or (python == uv.own_minor() and not requirements):
        return StandaloneEnvironment(sys.executable, sys.prefix, sys.base_prefix, failures.KIT)
    uv.check_python(python)
    told = json.dumps([python, requirements]).encode()
    place = os.path.join(folder, "environments", hashlib.sha256(told).hexdigest()[:20])
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        with locked(f"{place}.lock"):
            if not os.path.exists(place):
                say(uv.building(python, requirements))
                _Build(place, python, requirements, ticket, folder, abandoned).run()
        base = os.path.realpath(uv.python_in(place))
        kept = kit.kept_in(os.path.join(folder, "kits"))
    except OSError as error:
        raise AttemptFailed(**endings.no_environment(error)) from error
    return StandaloneEnvironment(
        uv.python_in(place), place, os.path.dirname(os.path.dirname(base)), kept
    )


class _Build:
    """Made in a folder beside its place, and moved there when it is whole."""

    def __init__(
        self,
        place: str,
        python: str,
        requirements: tuple[str, ...],
        ticket: AttemptTicket,
        folder: str,
        abandoned: threading.Event,
    ) -> None:
        self._abandoned = abandoned
        self._place, self._python, self._requirements = place, python, requirements
        self._ticket = ticket
        self._building = f"{place}.building"
        self._environment = os.path.join(self._building, "environment")
        self._pythons = os.path.join(folder, "pythons")
        self._uv = uv.program()

    def run(self) -> None:
        shutil.rmtree(self._building, ignore_errors=True)  # of one that was cut short
        for part in (self._building, self._pythons, *map(self._part, ("cache", "tmp"))):
            os.makedirs(part, exist_ok=True)
        try:
            self._fill()
            os.rename(self._environment, self._place)
        finally:
            shutil.rmtree(self._building, ignore_errors=True)

    def _part(self, name: str) -> str:
        return os.path.join(self._building, name)

    def _fill(self) -> None:
        own = uv.own_minor()
        wanted = uv.own_python() if self._python == own else self._python
        making = uv.venv(self._uv, self._environment, "--python", wanted)
        code, said = self._step(making, self._pythons)
        if code and self._python != own:
            raise AttemptFailed(**endings.no_python(own, self._python, said))
        if code:
            raise OSError(f"uv said: {said}")
        python = uv.python_in(self._environment)
        interpreter = os.path.realpath(python)  # before anything of a package could change it
        if self._requirements:
            listing = os.path.join(self._environment, "requirements.txt")
            with open(listing, "w", encoding="utf-8") as file:
                file.write("\n".join(self._requirements) + "\n")
            code, said = self._step(uv.install(self._uv, python, listing))
            if code:
                raise AttemptFailed(**endings.requirements_failed(self._requirements, said))
            for command in uv.compilations(interpreter, self._environment):
                self._step(command)

    def _step(self, command: list[str], *writes: str) -> tuple[int, str]:
        """Its exit code, which says nothing where others killed it, and the end of its output.
        Only the step that runs nothing of a package writes what later builds use."""
        self._go_on()
        with subprocess.Popen(
            uv.supervised(command, self._walls(writes)),
            stdin=subprocess.PIPE,  # held open: closed, it stands for our death
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **uv.VARIABLES,
                "UV_CACHE_DIR": self._part("cache"),
                "UV_PYTHON_INSTALL_DIR": self._pythons,
                **dict.fromkeys(system.TEMPORARY, self._part("tmp")),
            },
            cwd=os.path.abspath(os.sep),
        ) as process:
            said = b""
            assert process.stdout is not None
            while data := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                said = (said + data)[-4 * TAIL :]
            code = process.wait()
        self._go_on()
        return code, said.decode(errors="replace").strip()[-TAIL:]

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise AttemptFailed(**endings.CANCELLED_BEFORE)

    def _walls(self, writes: tuple[str, ...]) -> dict[str, Any]:
        python_folder = os.path.dirname(os.path.dirname(os.path.realpath(uv.own_python())))
        own = (sys.prefix, sys.base_prefix, self._pythons)
        return {
            "isolate": self._ticket.isolate,
            "read_paths": [*self._ticket.read_paths, *own, python_folder],
            "write_paths": [self._building, *writes],
        }
