"""The runners of this worker: started when needed, kept warm, ended when idle or in the way."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import math
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from corral.agent import inventory
from corral.agent.environments.builder import OWN, Environment, own_packages
from corral.agent.gpus.watch import Tenant
from corral.agent.runners import process_tree
from corral.agent.runners.cgroups import Cgroups
from corral.agent.runners.runner import Listener, Makeup, RunDirectory, Runner
from corral.agent.system import own_processor, spawns
from corral.runtime.channels.configuration import encode
from corral.runtime.channels.frames import SURVIVED
from corral.runtime.environments.kit import RUNNER
from corral.runtime.files.removal import remove_tree
from corral.runtime.process import system
from corral.settings import WorkerSettings
from corral.variables import passed_environment

log = structlog.get_logger("corral.agent.runners.pool")

EXIT_S = 5.0
"""How long the death of a killed process is waited for."""

ASSETS = "assets"
"""Where fetched input files are kept; jobs read those whose digest they know."""
CERTIFICATE = "controller.pem"
"""The only certificate that the controller may show, for job processes to read."""


class Processors:
    """Pins runners to processors, so that neighbours do not share one needlessly: a limit that
    needs no privileges. Where the platform has no pinning, everything here is a no-op."""

    def __init__(self, ids: Sequence[int], here: Callable[[], int] | None = None) -> None:
        self._load = dict.fromkeys(ids, 0)
        self.here = here or own_processor()
        """The agent's own one. A runner is best there: the two take turns, and whoever talks to
        the agent has another one for itself."""

    def count(self, cpus: float) -> int:
        """How many processors `cpus` pins to; 0 when that is all of them."""
        wanted = math.ceil(cpus - 1e-9)
        return wanted if wanted < len(self._load) else 0

    def choose(self, count: int) -> tuple[int, ...]:
        """The least busy ones, and of those our own."""
        here = self.here()
        ranked = sorted(self._load, key=lambda cpu: (self._load[cpu], cpu != here, cpu))
        return tuple(sorted(ranked[:count]))

    def crowded(self, ids: tuple[int, ...]) -> bool:
        """Whether others are busy there while there are processors where nobody is."""
        load = self._load
        for cpu in ids:
            if load[cpu]:
                return sum(1 for busy in load.values() if not busy) >= len(ids)
        return False

    def take(self, ids: tuple[int, ...]) -> None:
        for cpu in ids:
            self._load[cpu] += 1

    def give(self, ids: tuple[int, ...]) -> None:
        for cpu in ids:
            self._load[cpu] -= 1


class Runners:
    listener: Listener
    """Told what the runners say, and how they end."""

    def __init__(
        self,
        worker_home: Path,
        kit: Path,
        cgroups: Cgroups,
        *,
        settings: WorkerSettings,
        root: str,
    ) -> None:
        self.home = str(worker_home)
        self._runs = worker_home / "runs"
        self._kit = kit
        self._settings = settings
        self._root = os.path.realpath(os.path.expanduser(root)) if root else ""
        self.artifacts = os.path.join(self._root, "artifacts") if root else ""
        """Where jobs may leave artifacts in the shared root."""
        self.turns = str(worker_home / "turns")
        """Where image pipelines take turns at a server."""
        self._spawn = spawns(settings)
        self._passed = passed_environment()
        self.processors = Processors(inventory.processor_ids(pins=not self._spawn))
        self._max_idle = settings.warm_runners or int(settings.cpus or inventory.processors())
        self._cgroups = cgroups
        self._names = itertools.count(1)
        self._all: dict[str, Runner] = {}
        self.idle: dict[str, Runner] = {}
        self._warm: dict[Makeup, list[Runner]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._spare: Runner | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._key = os.urandom(32)

    def clear_leftovers(self) -> None:
        """Only after the leftover processes are gone."""
        for left in self._runs.parent.glob(f"{self._runs.name}*"):
            try:
                remove_tree(str(left))
            except OSError as error:
                log.warning("leftover_files_stay", folder=str(left), error=str(error))
                if left == self._runs:  # out of the way, for the next agent to try again
                    left.rename(f"{left}-{os.urandom(4).hex()}")
        self._runs.mkdir(parents=True)
        os.makedirs(self.turns, exist_ok=True)
        if self.artifacts:
            with suppress(OSError):  # jobs send them to the controller where it cannot be
                os.makedirs(self.artifacts, exist_ok=True)

    def environments(self) -> set[str]:
        """Digests of the environments that runners live in."""
        return {runner.environment.digest for runner in self._all.values()}

    def with_gpus(self) -> list[Tenant]:
        """Runners that have GPUs, warm ones too."""
        return [
            Tenant(runner.tree.pid, runner.makeup.devices, name not in self.idle)
            for name, runner in self._all.items()
            if runner.makeup.devices and runner.tree is not None
        ]

    def models(self) -> tuple[str, ...]:
        """What attempts have loaded here, in processes that still live."""
        living = (runner for runner in self._all.values() if runner.models and not runner.ending)
        return tuple(sorted({model for runner in living for model in runner.models}))

    def digest(self, secrets: Mapping[str, str]) -> str:
        """For a makeup. Keyed, so that nobody who sees it can try values against it."""
        told = msgspec.json.encode(sorted(secrets.items()))
        return hmac.digest(self._key, told, "sha256").hex()

    # --- taking and giving back ----------------------------------------------------------------

    def take(
        self, makeup: Makeup, environment: Environment, *, fresh: bool, secrets: Mapping[str, str]
    ) -> Runner:
        """A runner for one attempt: a warm one where there is one, or one that is starting."""
        if makeup.devices:
            self._clear_devices(makeup)
        warm = None if fresh else self._warm.get(makeup)
        if warm:
            runner = self._nearest(warm)
            if not warm:
                del self._warm[makeup]
            del self.idle[runner.name]
            if runner.tree is not None and self.processors.crowded(runner.processors):
                runner.processors = self.processors.choose(makeup.cpus)
                runner.tree.pin(runner.processors)
        else:
            runner = self._start(makeup, environment, secrets)
        self.processors.take(runner.processors)
        runner.used += 1
        return runner

    def _nearest(self, warm: list[Runner]) -> Runner:
        """Taken from several: the youngest on our own processor, or the youngest."""
        if len(warm) > 1:
            here = self.processors.here()
            for place in range(len(warm) - 1, -1, -1):
                if here in warm[place].processors:
                    return warm.pop(place)
        return warm.pop()

    def give_back(self, runner: Runner) -> None:
        """Its attempt is over and its directory is empty: keep it warm."""
        self.processors.give(runner.processors)
        self.idle[runner.name] = runner
        self._warm.setdefault(runner.makeup, []).append(runner)
        if len(self.idle) > self._max_idle:
            self._discard(next(iter(self.idle.values())))
        self._rests(runner)

    def _rests(self, runner: Runner) -> None:
        runner.idle_since = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look_again(self._settings.warm_idle_s)

    def _clear_devices(self, makeup: Makeup) -> None:
        """An idle runner may still hold memory of the GPU that is now somebody else's."""
        for runner in list(self.idle.values()):
            shared = set(runner.makeup.devices).intersection(makeup.devices)
            if shared and runner.makeup != makeup:
                self._discard(runner)

    def _look_again(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._evict)

    def _evict(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        limit = self._settings.warm_idle_s
        for runner in list(self.idle.values()):
            if now - runner.idle_since >= limit - 0.01:
                self._discard(runner)
        if self._spare is not None and now - self._spare.idle_since >= limit - 0.01:
            self._end_spare()
        left = [*self.idle.values(), *([self._spare] if self._spare else ())]
        if left:
            oldest = min(runner.idle_since for runner in left)
            self._look_again(max(oldest + limit - now, 0.01))

    def _discard(self, runner: Runner) -> None:
        """End an idle runner in the background."""
        if self.idle.pop(runner.name, None) is None:
            return
        alike = self._warm[runner.makeup]
        alike.remove(runner)
        if not alike:
            del self._warm[runner.makeup]
        self.processors.take(runner.processors)
        self._in_background(self.end(runner, grace_s=0.0))

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- starting and ending -------------------------------------------------------------------

    def _start(
        self, makeup: Makeup, environment: Environment, secrets: Mapping[str, str]
    ) -> Runner:
        if self._spare is not None and not self._spare.lives():
            self._end_spare()  # killed, by somebody who needed memory
        runner = self._spare or self._supervised()
        self._spare = None
        if makeup.cpus:
            runner.processors = self.processors.choose(makeup.cpus)
        configuration = self._configuration(runner, makeup, environment)
        if secrets:
            # By its stdin: not in what the system shows of the process, and never to a log.
            configuration["secrets"] = secrets
        if runner.group is not None:
            configuration["cgroup"] = runner.group.path
        self._all[runner.name] = runner
        runner.begin(makeup, environment, self.listener, encode(configuration))
        # Then its own start no longer needs the processors for itself.
        runner.ready.add_done_callback(self._start_spare)
        log.debug("runner_started", runner=runner.name, environment=environment.digest)
        return runner

    def _supervised(self) -> Runner:
        """A runner of which only the supervisor has started: it waits to be told what it is."""
        name = f"r{next(self._names)}"
        directory = RunDirectory(self._runs / name)
        directory.make()
        group = self._cgroups.make(name)
        runner = Runner(name, directory, self.home, spawn=self._spawn, group=group)
        # Our own Python, and no variable of the job's: the environment's is executed by the
        # supervisor, behind the walls. Its own packages are none of the supervisor's business.
        command = [sys.executable, "-I", "-S", str(self._kit / RUNNER)]
        environ = {**self._passed, **self._markers(runner)}
        self._in_background(runner.spawn(command, environ))
        return runner

    def _start_spare(self, _: object = None) -> None:
        """One supervisor ahead of need: an interpreter's start less for the next new runner."""
        if self._spare is None and not self._closed:
            with suppress(OSError):  # a full disk, for one: whoever needs a runner will say so
                self._spare = self._supervised()
                self._rests(self._spare)

    def _end_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._in_background(self.end(spare, grace_s=0.0))

    def _markers(self, runner: Runner) -> dict[str, str]:
        return {process_tree.HOME_MARKER: self.home, process_tree.RUNNER_MARKER: runner.name}

    def _environ(self, runner: Runner, makeup: Makeup, environment: Environment) -> dict[str, str]:
        devices = ",".join(makeup.devices)
        programs = str(environment.python.parent)
        models = self._settings.model_paths
        inherited = self._passed.get("PATH", "")
        return {
            **self._passed,
            "PATH": f"{programs}{os.pathsep}{inherited}" if inherited else programs,
            "VIRTUAL_ENV": str(environment.path),
            **dict.fromkeys(system.HOMES, runner.directory.work),
            **dict.fromkeys(system.TEMPORARY, runner.directory.tmp),
            **dict(makeup.env),
            **({"CORRAL_MODEL_PATHS": os.pathsep.join(models)} if models else {}),
            # An attempt sees the GPUs it holds and no others, so these are not the user's to set.
            "CUDA_VISIBLE_DEVICES": devices,
            "HIP_VISIBLE_DEVICES": devices,
            **self._markers(runner),
        }

    def _configuration(
        self, runner: Runner, makeup: Makeup, environment: Environment
    ) -> dict[str, object]:
        read = [str(self._kit), str(environment.path), str(environment.base)]
        if (certificate := Path(self.home) / CERTIFICATE).exists():
            read.append(str(certificate))
        if self._root:
            read.append(self._root)
        if self._settings.system_site_packages:
            read.append(sys.prefix)
        own = environment.digest == OWN.digest
        packages = own_packages() if own else []
        if own:
            read += [file for entry in self._settings.backends for file in entry.files]
        return {
            "limits": {
                "memory_bytes": int(makeup.memory_gb * inventory.GIB) or None,
                "cpus": list(runner.processors) or None,
            },
            "isolate": self._settings.isolate,
            "read_paths": [
                *read,
                *packages,
                *makeup.reads,
                *self._settings.read_paths,
                *self._settings.model_paths,
            ],
            "known_paths": [str(Path(self.home) / ASSETS)],
            "write_paths": [
                runner.directory.path,
                *((self.artifacts,) if self.artifacts else ()),
                *((self.turns,) if own else ()),
                *self._settings.write_paths,
            ],
            "python": str(environment.python),
            "environ": self._environ(runner, makeup, environment),
            "packages": packages,
        }

    async def end(self, runner: Runner, *, grace_s: float) -> bool:
        """End a runner that is not idle, with all it started; False where some survived."""
        runner.ending = True
        ended = True
        await runner.spawned.wait()
        if grace_s <= 0:
            runner.close_stdin()
        else:
            runner.ask_to_stop()
        if runner.tree is not None:
            ended = await runner.tree.end(grace_s, lambda: runner.settled)
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_S):
                    await runner.over.wait()
            if runner.group is None and runner.code == SURVIVED:
                ended = False
        elif runner.group is not None:
            runner.group.remove()
        if not ended:
            log.warning("processes_survived", runner=runner.name)
        runner.close()
        self.processors.give(runner.processors)
        self._all.pop(runner.name, None)
        await asyncio.to_thread(runner.directory.remove)
        return ended

    def lost(self, runner: Runner) -> None:
        """An idle runner died by itself."""
        log.warning("idle_runner_died", runner=runner.name, code=runner.code)
        self._discard(runner)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        self._end_spare()
        for runner in list(self.idle.values()):
            self._discard(runner)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cgroups.close()
