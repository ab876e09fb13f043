"""The commands that build an environment: each confined, and ended with everything it started.

Code of a package runs in one step alone, the one that builds from source. It writes the new
environment and a cache that goes with the build. The steps that write what others use later, uv's
cache and its Pythons, execute nothing of a package.
"""

from __future__ import annotations

import asyncio
import csv
import glob
import itertools
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from corral.agent.environments import manifest
from corral.agent.inventory import GIB
from corral.agent.runners.cgroups import Cgroup, Cgroups
from corral.agent.runners.process_tree import Tree
from corral.runtime.environments import uv
from corral.runtime.environments.kit import compiled
from corral.runtime.process import system

log = structlog.get_logger("corral.agent.environments.build_steps")

BUILD_LIMIT_S = 3600.0
WEIGH_S = 0.5
STACKS = 2 << 30
"""What a process may reserve beyond its memory and not use: uv has threads for every processor."""
END_S = 10.0
"""How long the processes of a build have to be gone; their supervisor kills them at once."""
TAIL = 4000
RECORD_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]*-")


class Workplace:
    """Where an environment is made; `environment` is moved away when it is whole, the rest goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment, self.temporary = path / "environment", path / "tmp"
        self.cache = path / "cache"
        """Of this build alone."""

    def make(self) -> None:
        for folder in (self.environment, self.temporary, self.cache):
            folder.mkdir(parents=True)


class Confine(Struct, frozen=True):
    """What builds may read, and what their steps write that is not theirs alone."""

    reads: tuple[str, ...]
    cache: str
    pythons: str


class OverMemory(Exception):
    """A step held more than builds may."""


class BuildSteps:
    """Runs the steps of builds; each answers with an exit code and the end of what was said."""

    def __init__(
        self,
        environ: Mapping[str, str],
        kit: Path,
        cgroups: Cgroups,
        *,
        confine: Confine | None = None,
        memory_gb: float = 0.0,
    ) -> None:
        self._environ = {**environ, **uv.VARIABLES}
        self._kit, self._cgroups = kit, cgroups
        self._confine, self._memory_bytes = confine, int(memory_gb * GIB)
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
        if not code and (damaged := await asyncio.to_thread(damaged_packages, place.environment)):
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

    async def compile_kit(self, place: Workplace, interpreter: Path) -> None:
        """For one more Python, and vouch for that too."""
        command = [str(interpreter), "-I", "-S", "-m", "compileall", "-q"]
        await self._run([*command, *map(str, compiled(self._kit))], place, (str(self._kit),))
        await asyncio.to_thread(manifest.list_files, self._kit)

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
            python = Path(uv.own_python()).resolve().parent.parent
            own = (sys.prefix, sys.base_prefix, str(python), self._confine.pythons, str(self._kit))
            config = {
                "isolate": True,
                "read_paths": [*self._confine.reads, *own],
                "write_paths": [str(place.environment), str(place.temporary), *writes],
                "programs": programs,
            }
        if self._memory_bytes:
            config["limits"] = {"memory_bytes": self._memory_bytes + STACKS}
        group = self._cgroups.make(f"b{next(self._names)}")
        if group is not None:
            config["cgroup"] = group.path
        process = await asyncio.create_subprocess_exec(
            *uv.supervised(command, config),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **self._environ,
                **dict.fromkeys(system.TEMPORARY, str(place.temporary)),
                **(environ or {}),
            },
            cwd=os.path.abspath(os.sep),  # uv obeys, or may not read, a project around its place
            **system.APART,
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


def damaged_packages(environment: Path) -> list[str]:
    """Packages with files that are missing, or of another size than their RECORD says: uv trusts
    its cache, and after a power cut that may hold empty files."""
    return [
        about.name.partition("-")[0]
        for folder in map(Path, uv.site_packages(str(environment)))
        for about in sorted(folder.glob("*.dist-info"))
        if _NAME.match(about.name) and not _is_whole(folder, about / "RECORD")
    ]


def _is_whole(folder: Path, record: Path) -> bool:
    try:
        found = os.lstat(record)
        # Code of packages may have written here: it makes us read no pipe, and nothing without end.
        if not stat.S_ISREG(found.st_mode) or found.st_size > RECORD_BYTES:
            return False
        text = record.read_text(encoding="utf-8")
        rows = [row for row in csv.reader(text.splitlines()) if len(row) == 3 and row[2]]
        return bool(text) and all(
            os.lstat(folder / path).st_size == int(size) for path, _, size in rows
        )
    except (OSError, ValueError, csv.Error):
        return False
