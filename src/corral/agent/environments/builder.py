"""Job environments: virtual environments built by uv, once for each digest of what is in them.

A build happens in a directory of its own and is moved into place when complete. Each is proven
when an agent first uses it, and made anew where damaged. Unused ones go in time, or for room.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import site
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral.agent.environments import manifest
from corral.agent.environments.build_steps import BuildSteps, Workplace
from corral.agent.inventory import DIFFUSERS_EXTRA, GIB
from corral.home import make_folder
from corral.runtime import endings
from corral.runtime.environments import uv
from corral.runtime.failures import AttemptFailed

log = structlog.get_logger("corral.agent.environments.builder")

RECORD = "corral-environment.json"
MAX_DEPTH = 100
"""Deeper folders are no environment's."""
FAILURE_KEPT_S = 10.0
"""For this long a failed build is not tried again: many jobs may wait for the same one."""
KEEP_S = 30 * 86_400.0
"""How long an environment is kept that no job uses."""


class Spec(Struct, frozen=True):
    """What makes an environment."""

    python: str
    requirements: tuple[str, ...] = ()
    system_site_packages: bool = False

    @property
    def digest(self) -> str:
        if not self.python:
            return "own"
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:20]


OWN = Spec(python="")
"""Where Corral itself is installed, for image pipelines. No job gets it by naming a Python."""


class Environment(Struct, frozen=True):
    digest: str
    path: Path
    python: Path
    base: Path
    """Where the interpreter itself lives; jobs must be able to read it."""


OWN_ENVIRONMENT = Environment(
    OWN.digest, Path(sys.prefix), Path(sys.executable), Path(sys.base_prefix)
)


class EnvironmentRecord(Struct):
    """Kept inside each environment."""

    spec: Spec
    size: int
    built_at: float
    base: str = ""
    """Where its interpreter lives, as it was before anything was installed: jobs may read all of
    that, so it is not asked of links that an installation can change."""


class Environments:
    """Finds and builds environments. `in_use` names the digests that must stay."""

    def __init__(
        self,
        root: Path,
        steps: BuildSteps,
        *,
        limit_gb: float,
        keep_s: float = KEEP_S,
        system_site_packages: bool,
        in_use: Callable[[], set[str]],
    ) -> None:
        self._root, self._steps = root, steps
        self._limit, self._keep_s = limit_gb * GIB, keep_s
        self._system = system_site_packages
        self._in_use = in_use
        self._own = uv.own_minor()
        self._ready = {OWN: OWN_ENVIRONMENT}
        self._used_at: dict[str, float] = {}
        self._builds: dict[Spec, asyncio.Task[Environment]] = {}
        self._failed: dict[Spec, tuple[float, AttemptFailed]] = {}
        self._specs: dict[tuple[str, tuple[str, ...]], Spec] = {}

    def clear_leftovers(self) -> None:
        """Remove what builds and cleanups that were cut short left behind."""
        make_folder(self._root)
        for path in self._root.glob(".*"):
            manifest.discard(path)

    def spec(self, python: str, requirements: tuple[str, ...]) -> Spec:
        known = self._specs.get((python, requirements))
        if known is None:
            known = Spec(
                python=python or self._own,
                requirements=uv.normal(requirements),
                system_site_packages=self._system,
            )
            self._specs[python, requirements] = known
        return known

    def ready(self, spec: Spec) -> Environment | None:
        """The environment if it is here and proven: the only question asked for most attempts."""
        found = self._ready.get(spec)
        if found is not None:
            self._used_at[found.digest] = time.time()
        return found

    def _whole(self, spec: Spec) -> Environment | None:
        """One that is whole on disk: built just now, or by an earlier agent."""
        path = self._root / spec.digest
        python = Path(uv.python_in(str(path)))
        try:
            os.utime(path / RECORD)
            record = msgspec.json.decode((path / RECORD).read_bytes(), type=EnvironmentRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        if not python.exists() or not record.base or not manifest.is_whole(path):
            log.warning("environment_not_proven", environment=spec.digest)
            return None
        base = Path(record.base)
        return Environment(digest=spec.digest, path=path, python=python, base=base)

    def forget(self, spec: Spec) -> None:
        """Somebody removed or broke it: look again, and build again if need be."""
        if spec != OWN:
            self._ready.pop(spec, None)

    async def get(self, spec: Spec) -> Environment:
        """The environment, built if need be; all who ask meanwhile wait for the same build."""
        found = self.ready(spec)
        if found is not None:
            return found
        failed_at, failure = self._failed.get(spec, (0.0, None))
        if failure is not None and time.monotonic() - failed_at < FAILURE_KEPT_S:
            raise failure
        build = self._builds.get(spec)
        if build is None:
            build = asyncio.create_task(self._make(spec))
            self._builds[spec] = build
            build.add_done_callback(lambda done: self._finished(spec, done))
        return await asyncio.shield(build)

    def _finished(self, spec: Spec, done: asyncio.Task[Environment]) -> None:
        del self._builds[spec]
        if not done.cancelled() and isinstance(error := done.exception(), AttemptFailed):
            self._failed[spec] = (time.monotonic(), error)

    async def close(self) -> None:
        for build in list(self._builds.values()):
            build.cancel()
        await asyncio.gather(*self._builds.values(), return_exceptions=True)

    async def _make(self, spec: Spec) -> Environment:
        path = self._root / spec.digest
        try:
            found = await asyncio.to_thread(self._whole, spec)
            fresh = found is None
            if found is None:
                # Something damaged in its place is in the way: a broken interpreter, for one.
                await self._remove(path)
                await self._build(spec, path)
                found = await asyncio.to_thread(self._whole, spec)
            if found is None:
                raise FileNotFoundError(f"uv made no Python in {path}")
            self._ready[spec] = found
            self._used_at[spec.digest] = time.time()
            if fresh:
                await self.clean(spec.digest)
        except OSError as error:
            raise AttemptFailed(**endings.no_environment(error)) from error
        return found

    async def _build(self, spec: Spec, path: Path) -> None:
        started = time.monotonic()
        place = Workplace(self._root / f".building-{spec.digest}-{os.getpid()}")
        building = place.environment
        try:
            base = await self._fill(spec, place)
            size = await asyncio.to_thread(_size, building)
            record = EnvironmentRecord(spec=spec, size=size, built_at=time.time(), base=str(base))
            (building / RECORD).unlink(missing_ok=True)  # not followed, should it be a link
            (building / RECORD).write_bytes(msgspec.json.encode(record))
            await asyncio.to_thread(manifest.finish, building, path)
        finally:
            await asyncio.to_thread(manifest.discard, place.path)
        log.info(
            "environment_built",
            environment=spec.digest,
            python=spec.python,
            requirements=len(spec.requirements),
            seconds=round(time.monotonic() - started, 2),
        )

    async def _fill(self, spec: Spec, place: Workplace) -> Path:
        """Makes the environment; where its interpreter lives."""
        uv.check_python(spec.python)
        await asyncio.to_thread(manifest.discard, place.path)
        place.make()
        building = place.environment
        options = ["--python", uv.own_python() if spec.python == self._own else spec.python]
        if spec.system_site_packages:
            options.append("--system-site-packages")
        code, said = await self._steps.venv(place, *options)
        if code and spec.python == self._own:
            raise OSError(f"uv said: {said}")
        if code:
            raise AttemptFailed(**endings.no_python(self._own, spec.python, said))
        python = Path(uv.python_in(str(building)))
        interpreter = python.resolve()  # before anything of a package could change it
        if spec.system_site_packages and sys.prefix != sys.base_prefix:
            await asyncio.to_thread(_show_own_packages, building)
        if spec.requirements:
            listing = building / "requirements.txt"
            listing.write_text("\n".join(spec.requirements) + "\n", encoding="utf-8")
            code, said = await self._steps.install(place, python, listing)
            if code:
                raise AttemptFailed(**endings.requirements_failed(spec.requirements, said))
            await self._steps.compile(place, interpreter)
        if spec.python != self._own:
            await self._steps.compile_kit(place, interpreter)
        return interpreter.parent.parent

    async def clean(self, fresh: str = "") -> None:
        """Remove what nobody used for too long, or for longest while all are over the limit."""
        for digest, used_at in self._used_at.items():
            with suppress(OSError):  # the next agent goes by this
                os.utime(self._root / digest / RECORD, (used_at, used_at))
        kept = await asyncio.to_thread(_records, self._root)
        total = sum(size for _, size, _ in kept)
        old = time.time() - self._keep_s
        for used_at, size, path in sorted(
            (self._used_at.get(path.name, touched), size, path) for touched, size, path in kept
        ):
            if total <= self._limit and used_at > old:
                return
            if path.name != fresh and path.name not in self._in_use():
                total -= size
                log.info("environment_removed", environment=path.name, bytes=size)
                await self._remove(path)

    async def _remove(self, path: Path) -> None:
        self._ready = {
            spec: found for spec, found in self._ready.items() if found.digest != path.name
        }
        # Renamed first, so that nobody finds half an environment under its digest.
        gone = path.with_name(f".removing-{path.name}-{os.getpid()}")
        with suppress(OSError):
            path.rename(gone)
        await asyncio.to_thread(manifest.discard, gone)


def _records(root: Path) -> list[tuple[float, int, Path]]:
    """When each environment was last taken up by an agent, its size, and where it is."""
    found = []
    for path in root.iterdir():
        with suppress(OSError, msgspec.DecodeError):
            record = msgspec.json.decode((path / RECORD).read_bytes(), type=EnvironmentRecord)
            found.append(((path / RECORD).stat().st_mtime, record.size, path))
    return found


def own_packages() -> list[str]:
    """Folders with what a pipeline imports: a runner looks only into its interpreter's own."""
    specs = map(find_spec, ("msgspec", "PIL", "httpx", "websockets", *DIFFUSERS_EXTRA))
    places = (str(Path(spec.origin).parent.parent) for spec in specs if spec and spec.origin)
    return list(dict.fromkeys(places))


def _show_own_packages(building: Path) -> None:
    """Corral itself may live in a virtual environment, with PyTorch beside it: uv links only the
    Python underneath, so these are named by hand."""
    text = "\n".join(site.getsitepackages()) + "\n"
    for folder in uv.site_packages(str(building)):
        Path(folder, "corral-worker.pth").write_text(text, encoding="utf-8")


def _size(path: Path) -> int:
    """OSError where it is no tree of files, folders and links that we would walk again."""
    total, todo = 0, [(str(path), 0)]
    while todo:
        folder, depth = todo.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                    todo.append((entry.path, depth + 1))
                elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    total += status.st_size
                else:
                    raise OSError(f"its installation left {entry.name!r}, which is no plain file")
    return total
