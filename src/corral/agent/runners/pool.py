"""The runners of this worker: started when needed, kept warm for attempts of the same makeup,
ended when they are in the way, too many, or idle for too long.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from corral.agent import system
from corral.agent.environments import kit as kits
from corral.agent.environments.builder import OWN, Environment, own_packages
from corral.agent.gpus.watch import Tenant
from corral.agent.inventory import GIB
from corral.agent.runners import process_tree
from corral.agent.runners.cgroups import Cgroups
from corral.agent.runners.processors import Processors
from corral.agent.runners.run_directory import RunDirectory
from corral.agent.runners.runner import Listener, Makeup, Runner
from corral.runtime.channels.configuration import encode
from corral.runtime.files.removal import remove_tree
from corral.settings import WorkerSettings

log = structlog.get_logger("corral.agent.runners.pool")

SURVIVED = 70
"""The exit code of a supervisor that could not end everything below it."""
EXIT_S = 5.0
"""How long the death of a killed process is waited for."""

ASSETS = "assets"
"""Where fetched input files are kept; jobs read those whose digest they know."""
CERTIFICATE = "controller.pem"
"""The only certificate that the controller may show, for job processes to read."""


class Runners:
    def __init__(
        self,
        worker_home: Path,
        kit: Path,
        *,
        settings: WorkerSettings,
        root: str = "",
        passed: Mapping[str, str],
        processors: Processors,
        max_idle: int,
        cgroups: Cgroups | None = None,
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
        self._spawn = system.spawns(settings)
        self._passed = dict(passed)
        self._processors = processors
        self._max_idle = max_idle
        self._cgroups = cgroups
        self._names = itertools.count(1)
        self._all: dict[str, Runner] = {}
        self._idle: dict[str, Runner] = {}
        self._warm: dict[Makeup, list[Runner]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
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

    @property
    def idle(self) -> int:
        return len(self._idle)

    def environments(self) -> set[str]:
        """Digests of the environments that runners live in."""
        return {runner.environment.digest for runner in self._all.values()}

    def with_gpus(self) -> list[Tenant]:
        """Runners that have GPUs, warm ones too."""
        return [
            Tenant(runner.tree.pid, runner.makeup.devices, name not in self._idle)
            for name, runner in self._all.items()
            if runner.makeup.devices and runner.tree is not None
        ]

    def models(self) -> tuple[str, ...]:
        """What attempts have loaded here, in processes that still live."""
        living = (runner for runner in self._all.values() if runner.models and not runner.ending)
        return tuple(sorted({model for runner in living for model in runner.models}))

    def processors_for(self, cpus: float) -> int:
        return self._processors.count(cpus)

    def digest(self, secrets: Mapping[str, str]) -> str:
        """Names and values as part of a makeup; keyed, so that nobody who sees it can try values
        against it."""
        told = msgspec.json.encode(sorted(secrets.items()))
        return hmac.digest(self._key, told, "sha256").hex()

    # --- taking and giving back ----------------------------------------------------------------

    def take(
        self,
        makeup: Makeup,
        environment: Environment,
        listener: Listener,
        *,
        fresh: bool,
        secrets: Mapping[str, str] | None = None,
    ) -> Runner:
        """A runner for one attempt: a warm one where there is one, or one that is starting."""
        if makeup.devices:
            self._clear_devices(makeup)
        warm = None if fresh else self._warm.get(makeup)
        if warm:
            runner = self._nearest(warm)
            if not warm:
                del self._warm[makeup]
            del self._idle[runner.name]
            if runner.tree is not None and self._processors.crowded(runner.processors):
                runner.processors = self._processors.choose(makeup.cpus)
                runner.tree.pin(runner.processors)
        else:
            runner = self._start(makeup, environment, listener, secrets or {})
        self._processors.take(runner.processors)
        runner.used += 1
        return runner

    def _nearest(self, warm: list[Runner]) -> Runner:
        """Taken from several: the youngest on our own processor, or the youngest."""
        if len(warm) > 1:
            here = self._processors.here()
            for place in range(len(warm) - 1, -1, -1):
                if here in warm[place].processors:
                    return warm.pop(place)
        return warm.pop()

    def give_back(self, runner: Runner) -> None:
        """Its attempt is over and its directory is empty: keep it warm."""
        self._processors.give(runner.processors)
        self._idle[runner.name] = runner
        self._warm.setdefault(runner.makeup, []).append(runner)
        if len(self._idle) > self._max_idle:
            self._discard(next(iter(self._idle.values())))
        self._rests(runner)

    def _rests(self, runner: Runner) -> None:
        runner.idle_since = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look_again(self._settings.warm_idle_s)

    def _clear_devices(self, makeup: Makeup) -> None:
        """An idle runner may still hold memory of the GPU that is now somebody else's."""
        for runner in list(self._idle.values()):
            if runner.makeup != makeup and not set(runner.makeup.devices).isdisjoint(
                makeup.devices
            ):
                self._discard(runner)

    def _look_again(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._evict)

    def _evict(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        limit = self._settings.warm_idle_s
        for runner in list(self._idle.values()):
            if now - runner.idle_since >= limit - 0.01:
                self._discard(runner)
        if self._spare is not None and now - self._spare.idle_since >= limit - 0.01:
            self._end_spare()
        left = [*self._idle.values(), *([self._spare] if self._spare else ())]
        if left:
            oldest = min(runner.idle_since for runner in left)
            self._look_again(max(oldest + limit - now, 0.01))

    def _forget_idle(self, runner: Runner) -> bool:
        if self._idle.pop(runner.name, None) is None:
            return False
        alike = self._warm[runner.makeup]
        alike.remove(runner)
        if not alike:
            del self._warm[runner.makeup]
        return True

    def _discard(self, runner: Runner) -> None:
        """End an idle runner in the background."""
        if self._forget_idle(runner):
            self._processors.take(runner.processors)
            task = asyncio.create_task(self._end_idle(runner))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end_idle(self, runner: Runner) -> None:
        await self.end(runner, grace_s=0.0)

    # --- starting and ending -------------------------------------------------------------------

    def _start(
        self,
        makeup: Makeup,
        environment: Environment,
        listener: Listener,
        secrets: Mapping[str, str],
    ) -> Runner:
        if self._spare is not None and self._spare.over.is_set():
            self._end_spare()  # killed, by somebody who needed memory
        runner = self._spare or self._supervised()
        self._spare = None
        if makeup.cpus:
            runner.processors = self._processors.choose(makeup.cpus)
        configuration = self._configuration(runner, makeup, environment)
        if secrets:
            # By its stdin: not in what the system shows of the process, and never to a log.
            configuration["secrets"] = secrets
        if runner.group is not None:
            configuration["cgroup"] = runner.group.path
        self._all[runner.name] = runner
        runner.begin(makeup, environment, listener, encode(configuration))
        # Then its own start no longer needs the processors for itself.
        runner.ready.add_done_callback(self._start_spare)
        log.debug("runner_started", runner=runner.name, environment=environment.digest)
        return runner

    def _supervised(self) -> Runner:
        """A runner of which only the supervisor has started: it waits to be told what it is."""
        name = f"r{next(self._names)}"
        directory = RunDirectory(self._runs / name)
        directory.make()
        group = self._cgroups.make(name) if self._cgroups is not None else None
        runner = Runner(name, directory, self.home, spawn=self._spawn, group=group)
        # Our own Python, and no variable of the job's: the environment's is executed by the
        # supervisor, behind the walls. Its own packages are none of the supervisor's business.
        command = [sys.executable, "-I", "-S", str(self._kit / kits.RUNNER)]
        task = asyncio.create_task(runner.spawn(command, self._own_environ(runner)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
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
            task = asyncio.create_task(self._end_idle(spare))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _own_environ(self, runner: Runner) -> dict[str, str]:
        """What the supervisor finds: nothing that whoever submitted a job could set."""
        return {**self._passed, **self._markers(runner)}

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
            **system.own_folders(runner.directory.work, runner.directory.tmp),
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
                "memory_bytes": int(makeup.memory_gb * GIB) or None,
                "cpus": list(runner.processors) or None,
            },
            "isolate": self._settings.isolate,
            "read_paths": [
                *read,
                *packages,
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
        """End a runner that is not idle, with everything it started; then forget it. False where
        something of it is known to have survived."""
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
        self._processors.give(runner.processors)
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
        for runner in list(self._idle.values()):
            self._discard(runner)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cgroups is not None:
            self._cgroups.close()
