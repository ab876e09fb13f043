"""The parts of an agent: opened one after the other, each with what it needs of those before it."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from corral.agent import inventory, system
from corral.agent.attempts.ledger import Ledger
from corral.agent.connection import DEFAULT_GRACE_S, AgentConnection, ControllerAddress
from corral.agent.environments import manifest
from corral.agent.environments.build_steps import BuildSteps, Confine
from corral.agent.environments.builder import OWN, Environments
from corral.agent.files.assets import AssetCache
from corral.agent.files.models import ModelFiles
from corral.agent.gpus.watch import Driver, GpuWatch
from corral.agent.image_servers import Restarts, ServerOffers, listening
from corral.agent.outbox import KEPT, KeptResults
from corral.agent.runners import process_tree
from corral.agent.runners.cgroups import Cgroups
from corral.agent.runners.pool import ASSETS, CERTIFICATE, Runners
from corral.agent.runners.runner import Makeup
from corral.core.images.backends import WebUIEntry
from corral.core.job import Needs
from corral.core.worker import GPU
from corral.protocol.messages import WorkerWelcome
from corral.runtime.failures import AttemptFailed
from corral.runtime.order import Endpoint, Renderer
from corral.settings import Settings
from corral.shared_root import SharedRoot
from corral.variables import build_environment, build_paths

if TYPE_CHECKING:
    from corral.agent.agent import Agent

log = structlog.get_logger("corral.agent")

PROBE_S = 20.0
BEYOND_GRACE_S = 90.0
"""How long beyond the grace transfers are tried: whoever may still come back has not failed."""


class AgentParts:
    def __init__(
        self, home: Path, settings: Settings, driver: Driver, agent: Agent, *, own_home: str
    ) -> None:
        self._home, self._settings, self._worker = home, settings, settings.worker
        self._driver, self._agent, self._own_home = driver, agent, own_home
        self._cgroups = Cgroups(home)
        self.leftovers = 0
        """Processes of an agent before this one that were found and ended."""

    async def open(self, connection: AgentConnection, worker_id: str) -> None:
        await self._sweep()
        kits, root = self._home / "kit", self._settings.assets.root
        kits.mkdir(parents=True, exist_ok=True)
        self.kit = await asyncio.to_thread(manifest.assemble_kit, kits)
        manifest.drop_other_kits(kits, self.kit)
        self.runners = Runners(
            self._home, self.kit, self._cgroups, settings=self._worker, root=root
        )
        self.runners.clear_leftovers()
        self._open_environments()
        self.assets = AssetCache(
            self._home / ASSETS,
            limit_gb=self._worker.assets_gb,
            root=SharedRoot(root),
            in_use=lambda: self.ledger.assets_in_use(),
        )
        self.assets.clear_leftovers()
        await self._open_image_servers()
        await self._open_devices()
        self.ledger = Ledger(
            self.capabilities,
            connection,
            environments=self.environments,
            runners=self.runners,
            assets=self.assets,
            loaded=self._agent.tell_at_once,
            backend_down=self._backend_down,
            own_home=self._own_home,
        )
        self._find_results(worker_id)
        self.ledger.others_hold(self.gpus.taken)

    async def _sweep(self) -> None:
        # Supervisors that still live know what is theirs outside of their groups too.
        self.leftovers = await asyncio.to_thread(process_tree.sweep, str(self._home))
        self.leftovers += await self._cgroups.open()
        if self.leftovers:
            log.warning("leftover_processes_ended", processes=self.leftovers)

    def _open_environments(self) -> None:
        worker = self._worker
        steps = BuildSteps(
            {**build_environment(), process_tree.HOME_MARKER: str(self._home)},
            self.kit,
            self._cgroups,
            confine=self._confinement() if worker.isolate and not system.spawns(worker) else None,
            memory_gb=inventory.memory_gb(worker),
        )
        self.environments = Environments(
            self._home / "environments",
            steps,
            limit_gb=worker.environments_gb,
            system_site_packages=worker.system_site_packages,
            in_use=lambda: self.ledger.environments_in_use(),
        )
        self.environments.clear_leftovers()

    def _confinement(self) -> Confine:
        reads, cache, pythons = build_paths()
        for path in (cache, pythons):
            Path(path).mkdir(parents=True, exist_ok=True)
        reads += self._worker.read_paths
        return Confine(reads=reads, cache=cache, pythons=pythons)

    async def _open_image_servers(self) -> None:
        backends = self._worker.backends
        self.restarts = Restarts(backends, build_environment(), self._home / "restarts.log")
        self.offers = ServerOffers(
            inventory.usable(backends),
            self._agent.offers_changed,
            self.restarts.down,
            self.restarts.answers,
            turns=self.runners.turns,
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

    def _backend_down(self, kind: str, said: str) -> None:
        self.restarts.down(kind, said)
        self.offers.silent(kind, said)

    async def _open_devices(self) -> None:
        worker = self._worker
        self.gpus = GpuWatch(
            self._driver,
            ours=self.runners.with_gpus,
            changed=self._agent.others_changed,
            found=self._agent.gpus_found,
            servers=partial(listening, worker.backends),
        )
        self.models = ModelFiles(
            worker.model_paths, self._home / "models.json", self._agent.tell_at_once
        )
        self.looking_for_models = asyncio.create_task(self.models.run())
        self.capabilities = inventory.capabilities(
            worker, await self.gpus.first(), output_path=str(self._home / "runs")
        )
        if worker.gpus and any(gpu.vendor != "declared" for gpu in self.capabilities.gpus):
            log.warning("declared_gpus_ignored", detected=len(self.capabilities.gpus))

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
        except AttemptFailed as error:
            log.error("environment_not_made", reason=str(error))
            return {}
        makeup = Makeup(environment.digest, cpus=self.runners.processors.count(Needs().cpus))
        runner = self.runners.take(makeup, environment, fresh=True, secrets={})
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

    def describe(self, name: str) -> None:
        """What image jobs are told. Runners take turns at a WebUI through a shared folder."""
        drivers = {gpu.driver for gpu in self.capabilities.gpus if gpu.driver}
        turns = {"folder": self.runners.turns}
        self.ledger.orders.renderer = Renderer(
            worker=name,
            driver=", ".join(sorted(drivers)),
            backends=[
                {**entry.options(), **(turns if isinstance(entry, WebUIEntry) else {})}
                for entry in self.offers.in_order
            ],
        )

    def reach(self, address: ControllerAddress, welcome: WorkerWelcome | None = None) -> None:
        """How attempts reach the controller: as this agent does, unless it names another place."""
        endpoint = Endpoint(url=address.root)
        if welcome is not None:
            endpoint["url"] = welcome.url or address.root
            if place := self._artifacts_go(welcome.artifacts):
                endpoint["artifacts"] = place
            if welcome.grace_s > DEFAULT_GRACE_S:
                endpoint["patience_s"] = welcome.grace_s + BEYOND_GRACE_S
        if address.certificate:
            path = self._home / CERTIFICATE
            certificate = address.certificate.encode("ascii")
            if not path.exists() or path.read_bytes() != certificate:
                path.write_bytes(certificate)  # in place: what may read it was told this file
            endpoint["certificate"] = str(path)
        self.ledger.orders.endpoint = endpoint

    def _artifacts_go(self, where: str) -> str:
        """To the bucket, or into a folder that jobs may write to; otherwise to the controller."""
        if where != "root":
            return where
        folder = self.runners.artifacts
        return folder if folder and os.access(folder, os.W_OK) else ""

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
