"""The commands that build an environment: each behind walls that leave it what its step needs, and
ended together with everything it started.

Code of whoever published a requirement runs in one step alone, the one that builds from source. It
writes the new environment and a cache that goes with the build. The steps that write what others
use later, uv's cache and its Pythons, execute nothing of a package.
"""

from __future__ import annotations

import asyncio
import glob
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral.agent import system
from corral.agent.environments import installed
from corral.agent.inventory import GIB
from corral.agent.runners.cgroups import Cgroup, Cgroups
from corral.agent.runners.process_tree import Tree
from corral.runtime.environments import uv

log = structlog.get_logger("corral.agent.environments.build_steps")

BUILD_LIMIT_S = 3600.0
WEIGH_S = 0.5
STACKS = 2 << 30
"""What a process may reserve beyond its memory and not use: uv has threads for every processor."""
END_S = 10.0
"""How long the processes of a build have to be gone; their supervisor kills them at once."""
TAIL = 4000


class Workplace(Struct, frozen=True):
    """Where an environment is made; `environment` is moved away when it is whole, the rest goes."""

    path: Path

    @property
    def environment(self) -> Path:
        return self.path / "environment"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def cache(self) -> Path:
        """Of this build alone."""
        return self.path / "cache"

    def make(self) -> None:
        for folder in (self.environment, self.temporary, self.cache):
            folder.mkdir(parents=True)


class Confine(Struct, frozen=True):
    """What builds may read, and what their steps write that is not theirs alone."""

    reads: tuple[str, ...]
    cache: str
    pythons: str
    kit: str

    def config(self, writes: Sequence[str], *, programs: Sequence[str] | None) -> dict[str, object]:
        own = (sys.prefix, sys.base_prefix, own_python_folder(), self.pythons, self.kit)
        return {
            "isolate": True,
            "read_paths": [*self.reads, *own],
            "write_paths": writes,
            "programs": programs,
        }


class OverMemory(Exception):
    """A step held more than builds may."""


class BuildSteps:
    """Runs the steps of builds; each answers with an exit code and the end of what was said."""

    def __init__(
        self,
        environ: Mapping[str, str],
        confine: Confine | None,
        memory_bytes: int = 0,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._environ = {**environ, **uv.VARIABLES}
        self._confine = confine
        self._memory_bytes, self._cgroups = memory_bytes, cgroups
        self._names = itertools.count(1)
        self.uv = uv.program()
        self._uv_alone = (self.uv, *glob.glob("/lib*/ld-*"))  # itself, and what loads it

    async def venv(self, place: Workplace, *options: str) -> tuple[int, str]:
        """May fetch a Python into uv's own folder."""
        command = uv.venv(self.uv, str(place.environment), *options)
        return await self._run(command, place, self._shared(pythons=True))

    async def install(self, place: Workplace, python: Path, listing: Path) -> tuple[int, str]:
        """Wheels, with the cache of all. What comes as source cannot be built there, so it is
        done over with a cache of its own: it may write whatever it likes into that."""
        command = uv.install(self.uv, str(python), str(listing))
        if self._confine is not None:
            # In the next step uv cannot ask the new Python, which is still empty, what it is.
            ask = [self.uv, "pip", "list", "--quiet", "--python", str(python)]
            await self._run(ask, place, self._shared())
        code, said = await self._run(command, place, self._shared(), programs=self._uv_alone)
        if not code and (damaged := await asyncio.to_thread(installed.damaged, place.environment)):
            log.warning("cached_packages_damaged", packages=damaged)
            clean = [self.uv, "cache", "clean", "--quiet", *damaged]
            await self._run(clean, place, self._shared(), programs=self._uv_alone)
            again = [*command, "--reinstall"]
            code, said = await self._run(again, place, self._shared(), programs=self._uv_alone)
        if code and self._confine is not None:
            environ = {"UV_CACHE_DIR": str(place.cache)}
            code, said = await self._run(command, place, (str(place.cache),), environ)
        return code, said

    async def compile(self, place: Workplace, interpreter: Path) -> None:
        for command in uv.compilations(str(interpreter), str(place.environment)):
            await self._run(command, place, ())

    async def compile_kit(self, place: Workplace, command: list[str]) -> None:
        kit = () if self._confine is None else (self._confine.kit,)
        await self._run(command, place, kit)

    def _shared(self, *, pythons: bool = False) -> tuple[str, ...]:
        if self._confine is None:
            return ()
        return (self._confine.cache, *((self._confine.pythons,) if pythons else ()))

    async def _run(
        self,
        command: list[str],
        place: Workplace,
        writes: Sequence[str],
        environ: Mapping[str, str] | None = None,
        *,
        programs: Sequence[str] | None = None,
    ) -> tuple[int, str]:
        config: dict[str, object] = {}
        if self._confine is not None:
            own = (str(place.environment), str(place.temporary))
            config = self._confine.config([*own, *writes], programs=programs)
        if self._memory_bytes:
            config["limits"] = {"memory_bytes": self._memory_bytes + STACKS}
        group = self._cgroups.make(f"b{next(self._names)}") if self._cgroups else None
        if group is not None:
            config["cgroup"] = group.path
        process = await asyncio.create_subprocess_exec(
            *_supervised(command, config),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **self._environ,
                **system.temporary_folder(str(place.temporary)),
                **(environ or {}),
            },
            cwd=os.path.abspath(os.sep),  # uv obeys, or may not read, a project around its place
            **system.apart(),
        )
        try:
            if group is not None:
                await _enter(process, group)
            async with asyncio.timeout(BUILD_LIMIT_S):
                said = await self._bounded(process)
                await process.wait()
        except TimeoutError:
            return 1, f"nothing within {BUILD_LIMIT_S:g} s, so it was stopped."
        except OverMemory as over:
            return 1, str(over)
        finally:
            await _end(process, group)
        return process.returncode or 0, said.decode(errors="replace").strip()[-TAIL:]

    async def _bounded(self, process: asyncio.subprocess.Process) -> bytes:
        """The end of what it says; OverMemory where all of its processes together hold too much."""
        saying = asyncio.create_task(_end_of(process))
        try:
            tree = Tree(process.pid, home="", runner="")
            while not saying.done():
                await asyncio.wait((saying,), timeout=WEIGH_S)
                if self._memory_bytes and not saying.done():
                    held = await asyncio.to_thread(tree.memory_bytes, self._memory_bytes)
                    if held > self._memory_bytes:
                        gb = self._memory_bytes / GIB
                        raise OverMemory(
                            f"it held {held / GIB:.3g} GB of memory, and this worker has {gb:.3g} "
                            "GB, so it was stopped."
                        )
        except BaseException:
            saying.cancel()
            raise
        return saying.result()


def _supervised(command: list[str], config: dict[str, object]) -> list[str]:
    if sys.platform == "win32":
        return command
    from corral.runtime.sandbox import run_command

    told = msgspec.json.encode(config).decode()
    return [sys.executable, "-I", "-S", run_command.__file__, told, *command]


async def _enter(process: asyncio.subprocess.Process, group: Cgroup) -> None:
    """Its supervisor starts nothing before it is told to."""
    await asyncio.to_thread(group.take_in, process.pid)
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def _end_of(process: asyncio.subprocess.Process) -> bytes:
    """A build may say more than we have memory for."""
    assert process.stdout is not None
    said = b""
    while data := await process.stdout.read(1 << 16):
        said = (said + data)[-4 * TAIL :]
    return said


async def _end(process: asyncio.subprocess.Process, group: Cgroup | None) -> None:
    """Its supervisor takes a closed stdin for our death, and ends with everything below it."""
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        if sys.platform != "win32":
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if group is not None and not await group.end():
        log.warning("processes_survived", group=group.path)


def own_python_folder() -> str:
    return str(Path(uv.own_python()).resolve().parent.parent)
