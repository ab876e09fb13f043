"""The agent process: wires the parts, obeys signals, and leaves in order.

    python -m corral.agent.main --home HOME [--embedded]

Exit codes: 0 after a drain or when an embedded agent lost its controller, 75 when another agent
has this home or took this worker's place, 77 when it was revoked, 78 when the home or its settings
cannot be used, 85 when it is idle and a newer Corral lies ready to take its place.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import structlog
from msgspec.structs import replace

from corral import __version__, logs
from corral.agent import endings, image_servers, inventory, kit, process_tree, system
from corral.agent.assets import Assets
from corral.agent.attempts import Ledger
from corral.agent.build_steps import Confine
from corral.agent.cgroups import Cgroups
from corral.agent.connection import (
    DEFAULT_GRACE_S,
    Address,
    Connection,
    ControllerAway,
    Replaced,
    Revoked,
)
from corral.agent.environments import OWN, BuildFailed, Environments
from corral.agent.gpu_watch import Driver, GpuWatch
from corral.agent.keeper import UPDATE
from corral.agent.kept_results import KeptResults
from corral.agent.model_files import ModelFiles
from corral.agent.nvidia import Nvml
from corral.agent.processors import Processors
from corral.agent.restarts import Restarts
from corral.agent.runner_process import Makeup
from corral.agent.runners import ASSETS, CERTIFICATE, Runners
from corral.agent.server_offers import ServerOffers
from corral.agent.updates import Updates
from corral.core.backends import Entry, WebUIEntry
from corral.core.errors import CorralError
from corral.core.job import Needs
from corral.core.model import MOST_MODELS, Model, kept
from corral.core.worker import GPU, ImageServer
from corral.home import Home, Kept, is_locked, lock_file, read_json, write_private_json
from corral.protocol.messages import (
    VERSION,
    Drain,
    FromController,
    JobCancel,
    JobDispatch,
    JobRecall,
    Message,
    OutputReceived,
    ResultReceived,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerRegister,
    WorkerWelcome,
)
from corral.reopening import keep_open, reopen
from corral.runtime.order import Endpoint, Renderer
from corral.settings import Config, load
from corral.shared_root import SharedRoot
from corral.variables import build_environment, build_paths, passed_environment

log = structlog.get_logger("corral.agent")

TAKEN, REVOKED, UNUSABLE = 75, 77, 78
RECEIVED_S = 5.0
"""How long a leaving agent waits for the controller to have its last results."""
BEYOND_GRACE_S = 90.0
"""For so long beyond the grace attempts try to fetch and store: whoever may still come back in
time has not failed."""
PROBE_S = 20.0
TIDY_EVERY_S = 3600.0
KIT_DEPTH = 8
KILL_GRACE_S = 1.0
IDLE_POLL_S = 0.5
FINISH_S = 7 * 86_400.0
"""What came in the moment an update was about to begin has time to end."""
KEPT = "unreceived"
"""Results that the controller has not received yet."""


class Agent:
    """One worker machine. `run` returns the exit code."""

    def __init__(self, config: Config, *, embedded: bool, driver: Driver | None = None) -> None:
        self._driver = driver or Nvml()
        self._settings = config.settings
        self._embedded = embedded
        self._home = config.home / "worker"
        self._controller_lock = Home(config.home).lock
        self._leaving: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._opened = False
        self._hurry = asyncio.Event()
        self._for_good = False
        self._code = 0
        self._updates: Updates | None = None
        self._updating: asyncio.Task[None] | None = None
        self._is_up = False
        self._leftovers = 0
        self._incarnation = secrets.token_hex(8)
        self._models_told: tuple[Model, ...] = ()
        self._tasks_told: tuple[str, ...] = ()
        self._servers_told: tuple[ImageServer, ...] = ()

    async def run(self) -> int:
        await self._open()
        self._opened = True
        dialling = asyncio.create_task(self._connection.run())
        leaving = asyncio.create_task(self._left.wait())
        beside = [
            asyncio.create_task(self._tidy()),
            asyncio.create_task(keep_open((Kept(self._home, 2), Kept(self._kit, KIT_DEPTH)))),
            asyncio.create_task(self._gpus.run()),
            asyncio.create_task(self._offers.run()),
            self._looking_for_models,
        ]
        try:
            await asyncio.wait((dialling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not dialling.done():
                return self._code
            dialling.result()
        except ControllerAway as away:
            log.warning("controller_stayed_away", reason=str(away))
            return 0
        except Replaced:
            sys.stderr.write("Another agent took this worker's place; this one ends.\n")
            return TAKEN
        except Revoked as revoked:
            self._ledger.end_running(endings.REVOKED, 0.0)
            await self._ledger.roll.until_quiet()
            self._ledger.results.forget()
            (self._home / "agent.json").unlink(missing_ok=True)  # good for nothing any more
            sys.stderr.write(f"{revoked}\n")
            return REVOKED
        finally:
            updating = [self._updating] if self._updating is not None else []
            await self._close(dialling, leaving, *beside, *updating)
        return 0

    async def _tidy(self) -> None:
        """Environments that nobody used for too long go, also where no new one is built."""
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            with suppress(OSError):
                await self._environments.clean()

    def _confinement(self) -> Confine:
        reads, cache, pythons = build_paths()
        for path in (cache, pythons):
            Path(path).mkdir(parents=True, exist_ok=True)
        reads += self._settings.worker.read_paths
        return Confine(reads=reads, cache=cache, pythons=pythons, kit=str(self._kit))

    async def _open(self) -> None:
        settings = self._settings.worker
        home = self._home
        spawns = system.spawns(settings)
        cgroups = Cgroups(home)
        # Supervisors that still live know what is theirs outside of their groups too.
        swept = await asyncio.to_thread(process_tree.sweep, str(home))
        swept += await asyncio.to_thread(cgroups.open)
        self._leftovers = swept
        if swept:
            log.warning("leftover_processes_ended", processes=swept)
        kits = home / "kit"
        kits.mkdir(parents=True, exist_ok=True)
        self._kit = await asyncio.to_thread(kit.assemble, kits)
        kit.drop_others(kits, self._kit)
        self._runners = Runners(
            home,
            self._kit,
            settings=settings,
            root=self._settings.assets.root,
            passed=passed_environment(),
            processors=Processors(inventory.processor_ids(pins=not spawns)),
            max_idle=settings.warm_runners or int(settings.cpus or inventory.processors()),
            cgroups=cgroups,
        )
        self._runners.clear_leftovers()
        self._environments = Environments(
            home / "environments",
            limit_gb=settings.environments_gb,
            system_site_packages=settings.system_site_packages,
            environ={**build_environment(), process_tree.HOME_MARKER: str(home)},
            in_use=lambda: self._ledger.environments_in_use(),
            compile_kit=lambda python: [
                str(python),
                "-I",
                "-S",
                "-m",
                "compileall",
                "-q",
                str(self._kit),
            ],
            kit_compiled=lambda: kit.vouch(self._kit),
            confine=self._confinement() if settings.isolate and not spawns else None,
            memory_gb=inventory.memory_gb(settings),
            cgroups=cgroups,
        )
        self._environments.clear_leftovers()
        self._assets = Assets(
            home / ASSETS,
            limit_gb=settings.assets_gb,
            root=SharedRoot(self._settings.assets.root),
            in_use=lambda: self._ledger.assets_in_use(),
        )
        self._assets.clear_leftovers()
        self._connection = Connection(
            self._address,
            self,
            gives_up=self._embedded,
            lives=lambda: is_locked(self._controller_lock),
        )
        if not self._embedded:
            self._updates = Updates.of_this(self._address, build_environment())
        self._restarts = Restarts(settings.backends, build_environment(), home / "restarts.log")
        self._offers = ServerOffers(
            inventory.usable(settings.backends),
            self._offers_seen,
            self._restarts.down,
            self._restarts.answers,
        )
        await self._offers.first()
        self._gpus = GpuWatch(
            self._driver,
            ours=self._runners.with_gpus,
            changed=self._others_changed,
            found=self._gpus_found,
            servers=image_servers.listening(settings.backends),
        )
        self._models = ModelFiles(settings.model_paths, home / "models.json", self._tell_at_once)
        self._looking_for_models = asyncio.create_task(self._models.run())
        self._capabilities = inventory.capabilities(
            settings, await self._gpus.first(), output_path=str(home / "runs")
        )
        if settings.gpus and any(gpu.vendor != "declared" for gpu in self._capabilities.gpus):
            log.warning("declared_gpus_ignored", detected=len(self._capabilities.gpus))
        for entry in settings.backends:
            if lacks := inventory.lacking(entry):
                log.warning(
                    "backend_not_offered",
                    backend=entry.kind,
                    lacks=lacks,
                    hint=f"pip install 'corral[{entry.kind}]', then start the worker again",
                )
        self._ledger = Ledger(
            self._capabilities,
            environments=self._environments,
            runners=self._runners,
            assets=self._assets,
            send=self._connection.send,
            send_at_once=self._connection.send_at_once,
            send_output=self._connection.send_output,
            loaded=self._tell_at_once,
            backend_down=self._restarts.down,
        )
        self._find_results()
        self._ledger.others_hold(self._gpus.taken)
        self._reached()
        self._describe()
        if self._capabilities.workloads:
            self._capabilities = replace(self._capabilities, enforced=await self._probe())

    def _address(self) -> Address:
        return Address.read(self._home / "agent.json")

    def _describe(self) -> None:
        """What image pipelines are told of this worker."""
        drivers = {gpu.driver for gpu in self._capabilities.gpus if gpu.driver}
        self._ledger.orders.renderer = Renderer(
            worker=self._settings.worker.name or self._address().name,
            driver=", ".join(sorted(drivers)),
            backends=[self._options(entry) for entry in self._offers.in_order],
        )

    def _options(self, entry: Entry) -> dict[str, object]:
        """Runners take turns at a WebUI, in a folder that all of them may write to."""
        turns = {"folder": self._runners.turns} if isinstance(entry, WebUIEntry) else {}
        return {**entry.options(), **turns}

    def _find_results(self) -> None:
        """What an agent before us could not deliver."""
        try:
            found = self._ledger.results.keep_in(
                KeptResults(self._home / KEPT, self._address().worker_id)
            )
        except OSError as error:
            log.error("results_unreadable", path=str(self._home / KEPT), error=str(error))
            return
        if found:
            log.info("results_found", count=found)

    async def _probe(self) -> dict[str, str]:
        """What is enforced here, as a real runner says it; that one then stays warm."""
        spec = self._environments.spec("", ()) if self._settings.worker.allow_code else OWN
        try:
            environment = await self._environments.get(spec)
        except BuildFailed as error:
            log.error("environment_not_made", reason=error.failure.message)
            return {}
        makeup = Makeup(environment.digest, cpus=self._runners.processors_for(Needs().cpus))
        runner = self._runners.take(makeup, environment, self._ledger.listener, fresh=True)
        enforced: dict[str, str] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                enforced = await asyncio.shield(runner.ready)
        if not enforced or runner.over.is_set():
            log.error("runner_not_started", said=runner.stderr.decode(errors="replace"))
            await self._runners.end(runner, grace_s=0.0)
            return {}
        self._runners.give_back(runner)
        return {**enforced, "memory": "watched", "duration": runner.held_by(enforced)}

    async def _close(self, *tasks: asyncio.Task[Any]) -> None:
        self._ledger.return_waiting("the worker is leaving")
        self._ledger.end_running(endings.STOPPING, KILL_GRACE_S)
        await self._ledger.roll.until_quiet()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ledger.close()
        await self._restarts.close()
        await self._assets.close()
        await self._environments.close()
        await self._runners.close()

    # --- leaving -------------------------------------------------------------------------------

    def leave(self, grace_s: float, *, reason: str, for_good: bool) -> None:
        """Start to leave; asked again, hurry."""
        if not self._opened:
            self._left.set()
            return
        self._for_good |= for_good
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(grace_s, reason))
        elif for_good:
            self._hurry.set()

    async def _leave(self, grace_s: float, reason: str) -> None:
        log.info("worker_leaving", reason=reason, running=self._ledger.running, grace_s=grace_s)
        self._tell_at_once()  # or what is returned now would be sent here again
        self._ledger.return_waiting(reason)
        quiet = asyncio.create_task(self._ledger.roll.until_quiet())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((quiet, hurry), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        self._ledger.end_running(endings.STOPPING, KILL_GRACE_S)
        await quiet
        if self._connection.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECEIVED_S):
                    await self._ledger.results.until_received()
            with suppress(TimeoutError):
                async with asyncio.timeout(RECEIVED_S):
                    self._connection.send(WorkerGoodbye(reason=reason))
                    await self._connection.flush()
                    await self._connection.close()
        self._leaving = None
        if self._for_good:  # also where that was said only while it left
            self._left.set()

    # --- what the connection asks --------------------------------------------------------------

    def register(self, address: Address) -> WorkerRegister:
        gpus, models = self._capabilities.gpus, self._all_models()
        names = tuple(model.name for model in models)
        tasks = tuple(dict.fromkeys(self._offers.tasks))
        self._models_told, self._tasks_told = models, self._offers.tasks
        self._servers_told = self._offers.servers
        return WorkerRegister(
            worker_id=address.worker_id,
            software_version=__version__,
            runner_protocol=VERSION,
            capabilities=replace(self._capabilities, models_present=names, task_types=tasks),
            name=self._settings.worker.name or address.name,
            gpu_name=gpus[0].name if gpus else "",
            vram_gb=max((gpu.vram_gb for gpu in gpus), default=0.0),
            supported_models=names,
            attempts=self._ledger.attempts(),
            incarnation=self._incarnation,
            leftovers=self._leftovers,
            models=models,
            models_loaded=self._runners.models(),
            readings=self._gpus.readings,
            servers=self._servers_told,
        )

    def heartbeat(self) -> WorkerHeartbeat:
        ledger, models = self._ledger, self._all_models()
        ledger.results.beat()
        news = None if models == self._models_told else models
        self._models_told = models
        servers = self._offers.servers
        changed = None if servers == self._servers_told else servers
        self._servers_told = servers
        return WorkerHeartbeat(
            load=ledger.roll.load(),
            running=ledger.running,
            waiting=ledger.waiting,
            warm=self._runners.idle,
            readings=self._gpus.readings,
            models=news,
            models_loaded=self._runners.models(),
            leaving=self._leaving is not None,
            servers=changed,
        )

    def _all_models(self) -> tuple[Model, ...]:
        """Those of files first: their digests are known."""
        files, served = self._models.models, self._offers.models
        if served:
            known = {model.name for model in files}
            files = (*files, *(model for model in served if model.name not in known))[:MOST_MODELS]
        return files[: kept(model.name for model in files)]

    def _offers_seen(self) -> None:
        """Other stages than we introduced ourselves with: once more then. Models, and who does not
        answer, are told with the next heartbeat."""
        self._describe()
        if self._offers.tasks != self._tasks_told and self._connection.connected:
            log.info("image_servers_changed", tasks=self._offers.tasks)
            self._again = asyncio.create_task(self._connection.close())

    def disconnected(self) -> None:
        """What the controller has not received by now may never have reached it."""
        self._ledger.results.offline = True
        self._ledger.results.save()

    def _others_changed(self) -> None:
        """The controller hears of it first, so that what is returned is not sent here again."""
        self._tell_at_once()
        self._ledger.others_hold(self._gpus.taken)

    def _gpus_found(self, gpus: tuple[GPU, ...]) -> None:
        """The driver came up after us: we introduce ourselves once more."""
        log.info("gpus_found", gpus=[gpu.name for gpu in gpus])
        self._capabilities = replace(self._capabilities, gpus=gpus)
        self._ledger.offer(self._capabilities)
        self._describe()
        self._ledger.others_hold(self._gpus.taken)
        self._again = asyncio.create_task(self._connection.close())

    def _tell_at_once(self) -> None:
        if self._connection.connected:
            self._connection.send(self.heartbeat())

    def welcomed(self, welcome: WorkerWelcome) -> None:
        self._leftovers = 0  # told
        self._ledger.results.offline = False
        self._called(welcome.name)
        self._reached(welcome)
        if not self._is_up and not self._embedded:
            self._is_up = True
            write_private_json(self._home / "up.json", {"pid": os.getpid(), "version": __version__})
        self._look_for_update()
        if self._leaving is None:
            self._ledger.roll.draining = ""
        else:
            self._connection.send(self.heartbeat())  # it says that we leave

    def _called(self, name: str) -> None:
        """Keeps what the operator calls this worker, for whoever asks on this machine."""
        card = read_json(self._home / "agent.json")
        if not self._embedded and card and name != card.get("name"):
            log.info("worker_renamed", name=name)
            write_private_json(self._home / "agent.json", {**card, "name": name})
            self._describe()

    def _artifacts_go(self, where: str) -> str:
        """To the bucket, or into a folder that jobs may write to; otherwise to the controller."""
        if where != "root":
            return where
        folder = self._runners.artifacts
        return folder if folder and os.access(folder, os.W_OK) else ""

    def _reached(self, welcome: WorkerWelcome | None = None) -> None:
        """How attempts reach the controller: as this agent does, unless it names another place."""
        address = self._address()
        endpoint = Endpoint(address.root)
        if welcome is not None:
            endpoint.url = welcome.url or address.root
            endpoint.artifacts = self._artifacts_go(welcome.artifacts)
            if welcome.grace_s > DEFAULT_GRACE_S:
                endpoint.patience_s = welcome.grace_s + BEYOND_GRACE_S
        if address.certificate:
            path = self._home / CERTIFICATE
            certificate = address.certificate.encode("ascii")
            if not path.exists() or path.read_bytes() != certificate:
                path.write_bytes(certificate)  # in place: what may read it was told this file
            endpoint.certificate = str(path)
        self._ledger.orders.endpoint = endpoint

    def incompatible(self) -> None:
        """The controller is of another age; its own Corral would get along with it."""
        self._look_for_update()

    def _look_for_update(self) -> None:
        if self._updates is not None and (self._updating is None or self._updating.done()):
            self._updating = asyncio.create_task(self._update(self._updates))

    async def _update(self, updates: Updates) -> None:
        """Lays a newer Corral ready and makes room for it, as soon as nothing is to be done."""
        version = await updates.prepare()
        if not version:
            return
        while self._is_busy():  # noqa: ASYNC110 (nobody waits for it)
            await asyncio.sleep(IDLE_POLL_S)
        self._code = UPDATE
        self.leave(FINISH_S, reason=f"the worker updates itself to {version}", for_good=True)

    def _is_busy(self) -> bool:
        """Results that cannot be delivered now are kept on the disk; the next one delivers them."""
        ledger = self._ledger
        unreceived = self._connection.connected and ledger.attempts()
        return bool(ledger.running or ledger.waiting or unreceived)

    def deliver(self, messages: list[FromController]) -> None:
        ledger = self._ledger
        for message in messages:
            if isinstance(message, JobDispatch):
                ledger.dispatched(message)
            elif isinstance(message, ResultReceived):
                ledger.results.received(message.job, message.attempt)
                self._connection.sent_output.forget((message.job, message.attempt))
            elif isinstance(message, OutputReceived):
                for job, attempt, upto in message.upto:
                    self._connection.sent_output.received((job, attempt), upto)
            elif isinstance(message, JobCancel):
                ledger.cancelled(message)
            elif isinstance(message, JobRecall):
                ledger.recalled(message)
            elif isinstance(message, WorkerWelcome):
                self._called(message.name)
            elif isinstance(message, Drain):
                self.leave(
                    message.grace_s,
                    reason="the controller is stopping",
                    for_good=self._embedded,
                )
        ledger.start_ready()

    def started(self) -> list[Message]:
        return self._ledger.started()

    def results(self) -> list[Message]:
        return list(self._ledger.results.all().values())

    def has_work_ahead(self) -> bool:
        return self._ledger.roll.has_work_ahead()

    def caught_up(self) -> None:
        self._ledger.resume_output()


def take_lock(path: Path) -> IO[bytes] | None:
    """One agent per home: the open file is the lock; None when somebody has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("ab")
    if lock_file(handle.fileno()):
        return handle
    handle.close()
    return None


async def serve(config: Config, *, embedded: bool) -> int:
    agent = Agent(config, embedded=embedded)

    def stop() -> None:
        grace_s = config.settings.shutdown_grace_s
        agent.leave(grace_s, reason="the worker was asked to stop", for_good=True)

    # Ctrl-C reaches the whole foreground group; an embedded agent is told by its controller.
    system.on_stop(stop, (lambda: None) if embedded else stop)
    return await agent.run()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="corral-agent", description="A Corral worker.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--embedded", action="store_true")
    options = parser.parse_args(arguments)
    try:
        reopen((Kept(options.home / "worker", 2),))
        config = load(options.home.resolve())
        inventory.declared_gpus(config.settings.worker.gpus)  # refused here, before anything runs
        lock = take_lock(config.home / "worker" / "lock")
    except (CorralError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    if lock is None:
        sys.stderr.write(f"Another agent already runs on {config.home}; this one ends.\n")
        return TAKEN
    logs.configure(
        config.settings.log_level,
        config.settings.log_format,
        file=Home(config.home).log_file,
    )
    if not config.settings.inspectable:
        system.close_to_others()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with lock, asyncio.Runner(loop_factory=system.loop_factory()) as runner:
        return runner.run(serve(config, embedded=options.embedded))


if __name__ == "__main__":
    sys.exit(main())
