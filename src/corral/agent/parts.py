"""The parts of an agent: opened one after the other, each with what it needs of those before it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from msgspec.structs import replace

from corral.agent import inventory, system
from corral.agent.attempts.ledger import Ledger
from corral.agent.connection import AgentConnection
from corral.agent.environments import kit
from corral.agent.environments.build_steps import Confine
from corral.agent.environments.builder import OWN, BuildFailed, Environments
from corral.agent.files.assets import AssetCache
from corral.agent.files.models import ModelFiles
from corral.agent.gpus.watch import Driver, GpuWatch
from corral.agent.image_servers import processes
from corral.agent.image_servers.offers import ServerOffers
from corral.agent.image_servers.restarts import Restarts
from corral.agent.outbox.kept_results import KEPT, KeptResults
from corral.agent.runners import process_tree
from corral.agent.runners.cgroups import Cgroups
from corral.agent.runners.pool import ASSETS, Runners
from corral.agent.runners.processors import Processors
from corral.agent.runners.runner import Makeup
from corral.core.job import Needs
from corral.core.worker import GPU
from corral.runtime.environments.kit import compiled
from corral.settings import Settings
from corral.shared_root import SharedRoot
from corral.variables import build_environment, build_paths, passed_environment

log = structlog.get_logger("corral.agent")

PROBE_S = 20.0


class Changes(Protocol):
    """What is told to whoever holds the parts."""

    def offers_changed(self) -> None:
        """An image server has other stages or models, answers again, or fell silent."""

    def others_changed(self) -> None:
        """Processes that are not ours hold more or less of the GPUs."""

    def gpus_found(self, gpus: tuple[GPU, ...]) -> None:
        """The driver came up after us."""

    def tell_at_once(self) -> None:
        """Something that the next heartbeat says should not wait for it."""


class AgentParts:
    kit: Path
    runners: Runners
    environments: Environments
    assets: AssetCache
    restarts: Restarts
    offers: ServerOffers
    gpus: GpuWatch
    models: ModelFiles
    ledger: Ledger

    def __init__(self, home: Path, settings: Settings, driver: Driver, changes: Changes) -> None:
        self._home, self._settings, self._worker = home, settings, settings.worker
        self._driver, self._changes = driver, changes
        self._cgroups = Cgroups(home)
        self.leftovers = 0
        """Processes of an agent before this one that were found and ended."""

    async def open(self, connection: AgentConnection, worker_id: str) -> None:
        await self._sweep()
        await self._open_kit()
        self._open_runners()
        self._open_environments()
        self._open_assets()
        await self._open_image_servers()
        await self._open_devices()
        self._open_ledger(connection)
        self._find_results(worker_id)
        self.ledger.others_hold(self.gpus.taken)

    async def _sweep(self) -> None:
        # Supervisors that still live know what is theirs outside of their groups too.
        self.leftovers = await asyncio.to_thread(process_tree.sweep, str(self._home))
        self.leftovers += await asyncio.to_thread(self._cgroups.open)
        if self.leftovers:
            log.warning("leftover_processes_ended", processes=self.leftovers)

    async def _open_kit(self) -> None:
        kits = self._home / "kit"
        kits.mkdir(parents=True, exist_ok=True)
        self.kit = await asyncio.to_thread(kit.assemble, kits)
        kit.drop_others(kits, self.kit)

    def _open_runners(self) -> None:
        worker = self._worker
        self.runners = Runners(
            self._home,
            self.kit,
            settings=worker,
            root=self._settings.assets.root,
            passed=passed_environment(),
            processors=Processors(inventory.processor_ids(pins=not system.spawns(worker))),
            max_idle=worker.warm_runners or int(worker.cpus or inventory.processors()),
            cgroups=self._cgroups,
        )
        self.runners.clear_leftovers()

    def _open_environments(self) -> None:
        worker, place = self._worker, self.kit
        self.environments = Environments(
            self._home / "environments",
            limit_gb=worker.environments_gb,
            system_site_packages=worker.system_site_packages,
            environ={**build_environment(), process_tree.HOME_MARKER: str(self._home)},
            in_use=lambda: self.ledger.environments_in_use(),
            compile_kit=lambda python: [
                *(str(python), "-I", "-S", "-m", "compileall", "-q", *map(str, compiled(place)))
            ],
            kit_compiled=lambda: kit.vouch(place),
            confine=self._confinement() if worker.isolate and not system.spawns(worker) else None,
            memory_gb=inventory.memory_gb(worker),
            cgroups=self._cgroups,
        )
        self.environments.clear_leftovers()

    def _confinement(self) -> Confine:
        reads, cache, pythons = build_paths()
        for path in (cache, pythons):
            Path(path).mkdir(parents=True, exist_ok=True)
        reads += self._worker.read_paths
        return Confine(reads=reads, cache=cache, pythons=pythons, kit=str(self.kit))

    def _open_assets(self) -> None:
        self.assets = AssetCache(
            self._home / ASSETS,
            limit_gb=self._worker.assets_gb,
            root=SharedRoot(self._settings.assets.root),
            in_use=lambda: self.ledger.assets_in_use(),
        )
        self.assets.clear_leftovers()

    async def _open_image_servers(self) -> None:
        backends = self._worker.backends
        self.restarts = Restarts(backends, build_environment(), self._home / "restarts.log")
        self.offers = ServerOffers(
            inventory.usable(backends),
            self._changes.offers_changed,
            self.restarts.down,
            self.restarts.answers,
        )
        await self.offers.first()
        for entry in backends:
            if lacks := inventory.lacking(entry):
                log.warning(
                    "backend_not_offered",
                    backend=entry.kind,
                    lacks=lacks,
                    hint=f"pip install 'corral[{entry.kind}]', then start the worker again",
                )

    async def _open_devices(self) -> None:
        worker = self._worker
        self.gpus = GpuWatch(
            self._driver,
            ours=self.runners.with_gpus,
            changed=self._changes.others_changed,
            found=self._changes.gpus_found,
            servers=processes.listening(worker.backends),
        )
        self.models = ModelFiles(
            worker.model_paths, self._home / "models.json", self._changes.tell_at_once
        )
        self.looking_for_models = asyncio.create_task(self.models.run())
        self.capabilities = inventory.capabilities(
            worker, await self.gpus.first(), output_path=str(self._home / "runs")
        )
        if worker.gpus and any(gpu.vendor != "declared" for gpu in self.capabilities.gpus):
            log.warning("declared_gpus_ignored", detected=len(self.capabilities.gpus))

    def _open_ledger(self, connection: AgentConnection) -> None:
        self.ledger = Ledger(
            self.capabilities,
            environments=self.environments,
            runners=self.runners,
            assets=self.assets,
            send=connection.send,
            send_at_once=connection.send_at_once,
            send_output=connection.send_output,
            loaded=self._changes.tell_at_once,
            backend_down=self.restarts.down,
        )

    def _find_results(self, worker_id: str) -> None:
        """What an agent before us could not deliver."""
        path = self._home / KEPT
        try:
            found = self.ledger.results.keep_in(KeptResults(path, worker_id))
        except OSError as error:
            log.error("results_unreadable", path=str(path), error=str(error))
            return
        if found:
            log.info("results_found", count=found)

    async def probe(self) -> None:
        """What is enforced here, as a real runner says it; that one then stays warm."""
        if self.capabilities.workloads:
            enforced = await self._enforced()
            self.capabilities = replace(self.capabilities, enforced=enforced)

    async def _enforced(self) -> dict[str, str]:
        spec = self.environments.spec("", ()) if self._worker.allow_code else OWN
        try:
            environment = await self.environments.get(spec)
        except BuildFailed as error:
            log.error("environment_not_made", reason=error.failure.message)
            return {}
        makeup = Makeup(environment.digest, cpus=self.runners.processors_for(Needs().cpus))
        runner = self.runners.take(makeup, environment, self.ledger.listener, fresh=True)
        enforced: dict[str, str] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                enforced = await asyncio.shield(runner.ready)
        if not enforced or runner.over.is_set():
            log.error("runner_not_started", said=runner.stderr.decode(errors="replace"))
            await self.runners.end(runner, grace_s=0.0)
            return {}
        self.runners.give_back(runner)
        return {**enforced, "memory": "watched", "duration": runner.held_by(enforced)}

    def offer(self, gpus: tuple[GPU, ...]) -> None:
        """This machine turned out to have these."""
        self.capabilities = replace(self.capabilities, gpus=gpus)
        self.ledger.roll.offer(self.capabilities)

    async def close(self) -> None:
        await self.ledger.close()
        await self.restarts.close()
        await self.assets.close()
        await self.environments.close()
        await self.runners.close()
