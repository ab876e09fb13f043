"""The agent process: wires the parts, obeys signals, and leaves in order.

    python -m corral.agent.main --home HOME [--embedded]

Exit codes: 0 after a drain or when an embedded agent lost its controller, 75 when another agent
has this home or took this worker's place, 78 when the home or its settings cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import structlog
from msgspec.structs import replace

from corral import __version__, logs
from corral.agent import endings, inventory, kit, process_tree, system
from corral.agent.attempts import Ledger
from corral.agent.connection import Address, Connection, ControllerAway, Replaced, Revoked
from corral.agent.environments import BuildFailed, Confine, Environments
from corral.agent.processors import Processors
from corral.agent.runner_process import Makeup
from corral.agent.runners import CERTIFICATE, Runners
from corral.core.errors import CorralError
from corral.core.job import Needs
from corral.home import Home, lock_file
from corral.protocol.messages import (
    VERSION,
    Drain,
    FromController,
    JobCancel,
    JobDispatch,
    JobRecall,
    Message,
    ResultReceived,
    WorkerGoodbye,
    WorkerHeartbeat,
    WorkerRegister,
    WorkerWelcome,
)
from corral.settings import (
    Config,
    build_environment,
    build_paths,
    load,
    passed_environment,
)

log = structlog.get_logger("corral.agent")

TAKEN, REVOKED, UNUSABLE = 75, 77, 78
RECEIVED_S = 5.0
"""How long a leaving agent waits for the controller to have its last results."""
PROBE_S = 20.0
TIDY_EVERY_S = 3600.0
KILL_GRACE_S = 1.0


class Agent:
    """One worker machine. `run` returns the exit code."""

    def __init__(self, config: Config, *, embedded: bool) -> None:
        self._settings = config.settings
        self._embedded = embedded
        self._home = config.home / "worker"
        self._leaving: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._opened = False
        self._hurry = asyncio.Event()
        self._for_good = False

    async def run(self) -> int:
        await self._open()
        self._opened = True
        dialling = asyncio.create_task(self._connection.run())
        leaving = asyncio.create_task(self._left.wait())
        tidying = asyncio.create_task(self._tidy())
        try:
            await asyncio.wait((dialling, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not dialling.done():
                return 0
            dialling.result()
        except ControllerAway as away:
            log.warning("controller_stayed_away", reason=str(away))
            return 0
        except Replaced:
            sys.stderr.write("Another agent took this worker's place; this one ends.\n")
            return TAKEN
        except Revoked as revoked:
            self._ledger.end_running(endings.REVOKED, 0.0)
            await self._ledger.until_quiet()
            (self._home / "agent.json").unlink(missing_ok=True)  # good for nothing any more
            sys.stderr.write(f"{revoked}\n")
            return REVOKED
        finally:
            await self._close(dialling, leaving, tidying)
        return 0

    async def _tidy(self) -> None:
        """Environments that nobody used for too long go, also where no new one is built."""
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            with suppress(OSError):
                await self._environments.clean()

    def _confinement(self) -> Confine:
        reads, writes = build_paths()
        for path in writes:
            Path(path).mkdir(parents=True, exist_ok=True)
        own = (str(self._kit), *self._settings.worker.read_paths)
        return Confine(reads=(*reads, *own), writes=writes)

    async def _open(self) -> None:
        settings = self._settings.worker
        home = self._home
        spawns = system.spawns(settings)
        swept = await asyncio.to_thread(process_tree.sweep, str(home))
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
            passed=passed_environment(),
            processors=Processors(inventory.processor_ids(pins=not spawns)),
            max_idle=settings.warm_runners or int(settings.cpus or inventory.processors()),
        )
        self._runners.clear_leftovers()
        self._environments = Environments(
            home / "environments",
            limit_gb=settings.environments_gb,
            keep_s=settings.environments_s,
            system_site_packages=settings.system_site_packages,
            environ={**build_environment(), process_tree.HOME_MARKER: str(home)},
            in_use=lambda: self._ledger.environments_in_use(),
            compile_kit=lambda python: [
                str(python),
                "-I",
                "-m",
                "compileall",
                "-q",
                str(self._kit),
            ],
            confine=self._confinement() if settings.isolate and not spawns else None,
        )
        self._environments.clear_leftovers()
        self._connection = Connection(
            lambda: Address.read(home / "agent.json"), self, gives_up=self._embedded
        )
        self._capabilities = inventory.capabilities(settings, {})
        if settings.gpus and any(gpu.vendor != "declared" for gpu in self._capabilities.gpus):
            log.warning("declared_gpus_ignored", detected=len(self._capabilities.gpus))
        self._ledger = Ledger(
            self._capabilities,
            environments=self._environments,
            runners=self._runners,
            send=self._connection.send,
            send_output=self._connection.send_output,
        )
        self._reached()
        if settings.allow_code:
            self._capabilities = replace(self._capabilities, enforced=await self._probe())

    async def _probe(self) -> dict[str, str]:
        """What is enforced here, as a real runner says it; that one then stays warm."""
        try:
            environment = await self._environments.get(self._environments.spec("", ()))
        except BuildFailed as error:
            log.error("environment_not_made", reason=error.failure.message)
            return {}
        makeup = Makeup(environment.digest, cpus=self._runners.processors_for(Needs().cpus))
        runner = self._runners.take(makeup, environment, self._ledger, fresh=True)
        enforced: dict[str, str] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                enforced = await asyncio.shield(runner.ready)
        if not enforced or runner.over.is_set():
            log.error("runner_not_started", said=runner.stderr.decode(errors="replace"))
            await self._runners.end(runner, grace_s=0.0)
            return {}
        self._runners.give_back(runner)
        return {**enforced, "memory": "watched", "duration": "process_tree"}

    async def _close(self, *tasks: asyncio.Task[Any]) -> None:
        self._ledger.return_waiting("the worker is leaving")
        self._ledger.end_running(endings.STOPPING, KILL_GRACE_S)
        await self._ledger.until_quiet()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ledger.close()
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
        self._ledger.return_waiting(reason)
        quiet = asyncio.create_task(self._ledger.until_quiet())
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
        gpus = self._capabilities.gpus
        return WorkerRegister(
            worker_id=address.worker_id,
            software_version=__version__,
            runner_protocol=VERSION,
            capabilities=self._capabilities,
            name=self._settings.worker.name or address.name,
            gpu_name=gpus[0].name if gpus else "",
            vram_gb=max((gpu.vram_gb for gpu in gpus), default=0.0),
            attempts=self._ledger.attempts(),
        )

    def heartbeat(self) -> WorkerHeartbeat:
        ledger = self._ledger
        return WorkerHeartbeat(
            load=ledger.load(),
            running=ledger.running,
            waiting=ledger.waiting,
            warm=self._runners.idle,
        )

    def welcomed(self, welcome: WorkerWelcome) -> None:
        self._reached(welcome.url)
        if self._leaving is None:
            self._ledger.draining = ""

    def _reached(self, url: str = "") -> None:
        """How attempts reach the controller: as this agent does, unless it names another place."""
        address = Address.read(self._home / "agent.json")
        self._ledger.url = msgspec.json.encode(url or address.root)
        if address.certificate:
            path = self._home / CERTIFICATE
            path.write_text(address.certificate, encoding="ascii")
            self._ledger.certificate = msgspec.json.encode(str(path))

    def deliver(self, messages: list[FromController]) -> None:
        ledger = self._ledger
        for message in messages:
            if isinstance(message, JobDispatch):
                ledger.dispatched(message)
            elif isinstance(message, ResultReceived):
                ledger.results.received(message.job, message.attempt)
            elif isinstance(message, JobCancel):
                ledger.cancelled(message)
            elif isinstance(message, JobRecall):
                ledger.recalled(message)
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
        return self._ledger.has_work_ahead

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
