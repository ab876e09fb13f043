"""One worker machine: registers, obeys the controller, updates itself, and leaves in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from corral import __version__
from corral.agent.attempts import endings
from corral.agent.connection import (
    AgentConnection,
    ControllerAddress,
    ControllerAway,
    Replaced,
    Revoked,
)
from corral.agent.gpus.nvidia import Nvml
from corral.agent.gpus.watch import Driver
from corral.agent.keeper import UPDATE
from corral.agent.parts import AgentParts
from corral.agent.updates import Updates
from corral.core.worker import GPU, MOST_MODELS, ImageServer, Model, Withdrawn, kept
from corral.home import Home, KeptFolder, read_json, write_private_json
from corral.locks import is_locked
from corral.protocol import messages as wire
from corral.reopening import keep_open
from corral.settings import Config
from corral.variables import build_environment

log = structlog.get_logger("corral.agent")

TAKEN, REVOKED = 75, 77
"""Exit codes: another agent has this worker's place; the worker was revoked."""
RECEIVED_S = 5.0
"""How long a leaving agent waits for the controller to have its last results."""
TIDY_EVERY_S = 3600.0
KIT_DEPTH = 8
KILL_GRACE_S = 1.0
IDLE_POLL_S = 0.5
FINISH_S = 7 * 86_400.0
"""Time for what came in just as an update was about to begin."""


class Agent:
    """`run` returns the exit code."""

    def __init__(self, config: Config, *, embedded: bool, driver: Driver | None = None) -> None:
        self._settings = config.settings
        self._embedded = embedded
        self._home = config.home / "worker"
        own_home = str(config.home) if embedded else ""
        self._parts = AgentParts(
            self._home, config.settings, driver or Nvml(), self, own_home=own_home
        )
        lock = Home(config.home).lock
        self._connection = AgentConnection(
            self._address, self, gives_up=embedded, lives=lambda: is_locked(lock)
        )
        self._leaving: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._opened = False
        self._hurry = asyncio.Event()
        self._for_good = False
        self._code = 0
        self._updates = None if embedded else Updates.of_this(self._address, build_environment())
        self._updating: asyncio.Task[None] | None = None
        self._is_up = False
        self._incarnation = secrets.token_hex(8)
        self._models_told: tuple[Model, ...] = ()
        self._tasks_told: tuple[str, ...] = ()
        self._servers_told: tuple[ImageServer, ...] = ()
        self._withdrawn_told = Withdrawn()

    async def run(self) -> int:
        await self._open()
        dialling = asyncio.create_task(self._connection.run())
        leaving = asyncio.create_task(self._left.wait())
        parts = self._parts
        folders = (KeptFolder(self._home, 2), KeptFolder(parts.kit, KIT_DEPTH))
        beside = (self._tidy(), keep_open(folders), parts.gpus.run(), parts.offers.run())
        tasks = [dialling, leaving, parts.looking_for_models, *map(asyncio.create_task, beside)]
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
            await self._revoked()
            sys.stderr.write(f"{revoked}\n")
            return REVOKED
        finally:
            self._left.set()  # a stop that comes later finds it on its way out
            begun = filter(None, (self._updating, self._leaving))
            await self._close(*tasks, *begun)
        return 0

    async def _open(self) -> None:
        await self._parts.open(self._connection, self._address().worker_id)
        self._parts.reach(self._address())
        self._describe()
        await self._parts.probe()
        self._opened = True

    async def _revoked(self) -> None:
        ledger = self._parts.ledger
        ledger.end_running(endings.REVOKED, 0.0)
        await ledger.roll.until_quiet()
        ledger.results.forget()
        (self._home / "agent.json").unlink(missing_ok=True)  # good for nothing any more

    async def _tidy(self) -> None:
        """Environments that nobody used for too long go, also where no new one is built."""
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            with suppress(OSError):
                await self._parts.environments.clean()

    async def _close(self, *tasks: asyncio.Task[Any]) -> None:
        ledger = self._parts.ledger
        ledger.return_waiting("the worker is leaving")
        ledger.end_running(endings.STOPPING, KILL_GRACE_S)
        await ledger.roll.until_quiet()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.close()

    def _address(self) -> ControllerAddress:
        return msgspec.json.decode((self._home / "agent.json").read_bytes(), type=ControllerAddress)

    # --- leaving -------------------------------------------------------------------------------

    def leave(self, grace_s: float, *, reason: str, for_good: bool) -> None:
        """Start to leave; asked again, hurry."""
        if not self._opened or self._left.is_set():
            self._left.set()
            return
        self._for_good |= for_good
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(grace_s, reason))
        elif for_good:
            self._hurry.set()

    async def _leave(self, grace_s: float, reason: str) -> None:
        ledger = self._parts.ledger
        log.info("worker_leaving", reason=reason, running=len(ledger.roll.running), grace_s=grace_s)
        self.tell_at_once()  # or what is returned now would be sent here again
        ledger.return_waiting(reason)
        quiet = asyncio.create_task(ledger.roll.until_quiet())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((quiet, hurry), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        ledger.end_running(endings.STOPPING, KILL_GRACE_S)
        await quiet
        if self._connection.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECEIVED_S):
                    await ledger.results.until_received()
            with suppress(TimeoutError):
                async with asyncio.timeout(RECEIVED_S):
                    self._connection.send(wire.WorkerGoodbye(reason=reason))
                    await self._connection.flush()
                    await self._connection.close()
        self._leaving = None
        if self._for_good:  # also where that was said only while it left
            self._left.set()

    # --- updating ------------------------------------------------------------------------------

    def look_for_update(self) -> None:
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
        ledger = self._parts.ledger
        unreceived = self._connection.connected and ledger.attempts()
        return bool(ledger.roll.running or ledger.roll.unbegun() or unreceived)

    # --- what the parts tell -------------------------------------------------------------------

    def offers_changed(self) -> None:
        """What fell silent or answers again is told at once, new stages only at registration, and
        all else with the next heartbeat."""
        self._describe()
        offers = self._parts.offers
        if not self._connection.connected:
            return
        if offers.tasks != self._tasks_told:
            log.info("image_servers_changed", tasks=offers.tasks)
            self._introduce_again()
        elif (offers.servers, offers.withdrawn) != (self._servers_told, self._withdrawn_told):
            self.tell_at_once()

    def others_changed(self) -> None:
        """The controller hears of it first, or what is returned would be sent here again."""
        self.tell_at_once()
        self._parts.ledger.others_hold(self._parts.gpus.taken)

    def gpus_found(self, gpus: tuple[GPU, ...]) -> None:
        """The driver came up after us."""
        log.info("gpus_found", gpus=[gpu.name for gpu in gpus])
        self._parts.offer(gpus)
        self._describe()
        self._parts.ledger.others_hold(self._parts.gpus.taken)
        self._introduce_again()

    def _introduce_again(self) -> None:
        self._again = asyncio.create_task(self._connection.close())

    def tell_at_once(self) -> None:
        """Something that the next heartbeat says should not wait for it."""
        if self._connection.connected:
            self._connection.send(self.heartbeat())

    def _describe(self) -> None:
        self._parts.describe(self._settings.worker.name or self._address().name)

    # --- what the connection asks --------------------------------------------------------------

    def register(self, address: ControllerAddress) -> wire.WorkerRegister:
        parts = self._parts
        can, models = parts.capabilities, self._models()
        names = tuple(model.name for model in models)
        tasks = tuple(dict.fromkeys(parts.offers.tasks))
        self._models_told, self._tasks_told = models, parts.offers.tasks
        self._servers_told = parts.offers.servers
        self._withdrawn_told = parts.offers.withdrawn
        return wire.WorkerRegister(
            worker_id=address.worker_id,
            software_version=__version__,
            runner_protocol=wire.VERSION,
            capabilities=replace(can, models_present=names, task_types=tasks),
            name=self._settings.worker.name or address.name,
            gpu_name=can.gpus[0].name if can.gpus else "",
            vram_gb=max((gpu.vram_gb for gpu in can.gpus), default=0.0),
            supported_models=names,
            attempts=parts.ledger.attempts(),
            incarnation=self._incarnation,
            leftovers=parts.leftovers,
            models=models,
            models_loaded=parts.runners.models(),
            readings=parts.gpus.readings,
            servers=self._servers_told,
            withdrawn=self._withdrawn_told,
        )

    def heartbeat(self) -> wire.WorkerHeartbeat:
        parts, models = self._parts, self._models()
        ledger, servers, withdrawn = parts.ledger, parts.offers.servers, parts.offers.withdrawn
        ledger.results.beat()
        told = wire.WorkerHeartbeat(
            load=ledger.roll.load(),
            running=len(ledger.roll.running),
            waiting=len(ledger.roll.unbegun()),
            warm=len(parts.runners.idle),
            readings=parts.gpus.readings,
            models=None if models == self._models_told else models,
            models_loaded=parts.runners.models(),
            leaving=self._leaving is not None,
            servers=None if servers == self._servers_told else servers,
            withdrawn=None if withdrawn == self._withdrawn_told else withdrawn,
        )
        self._models_told, self._servers_told = models, servers
        self._withdrawn_told = withdrawn
        return told

    def _models(self) -> tuple[Model, ...]:
        """Those of files first: their digests are known."""
        files, served = self._parts.models.models, self._parts.offers.models
        if served:
            known = {model.name for model in files}
            files = (*files, *(model for model in served if model.name not in known))[:MOST_MODELS]
        return files[: kept(model.name for model in files)]

    def welcomed(self, welcome: wire.WorkerWelcome) -> None:
        ledger = self._parts.ledger
        self._parts.leftovers = 0  # told
        ledger.results.offline = False
        self._called(welcome.name)
        self._parts.reach(self._address(), welcome)
        if not self._is_up and not self._embedded:
            self._is_up = True
            write_private_json(self._home / "up.json", {"pid": os.getpid(), "version": __version__})
        self.look_for_update()
        if self._leaving is None:
            ledger.roll.draining = ""
        else:
            self._connection.send(self.heartbeat())  # it says that we leave

    def _called(self, name: str) -> None:
        """Keeps what the operator calls this worker, for whoever asks on this machine."""
        card = read_json(self._home / "agent.json")
        if not self._embedded and card and name != card.get("name"):
            log.info("worker_renamed", name=name)
            write_private_json(self._home / "agent.json", {**card, "name": name})
            self._describe()

    def disconnected(self) -> None:
        """What the controller has not received by now may never have reached it."""
        self._parts.ledger.results.offline = True
        self._parts.ledger.results.save()

    def deliver(self, messages: list[wire.FromController]) -> None:
        ledger, sent_output = self._parts.ledger, self._connection.sent_output
        for message in messages:
            if isinstance(message, wire.JobDispatch):
                ledger.dispatched(message)
            elif isinstance(message, wire.ResultReceived):
                ledger.results.received(message.job, message.attempt)
                sent_output.forget((message.job, message.attempt))
            elif isinstance(message, wire.OutputReceived):
                for job, attempt, upto in message.upto:
                    sent_output.received((job, attempt), upto)
            elif isinstance(message, wire.JobCancel):
                ledger.cancelled(message)
            elif isinstance(message, wire.JobRecall):
                ledger.recalled(message)
            elif isinstance(message, wire.JobExtend):
                ledger.extended(message)
            elif isinstance(message, wire.WorkerWelcome):
                self._called(message.name)
            elif isinstance(message, wire.Drain):
                reason = "the controller is stopping"
                self.leave(message.grace_s, reason=reason, for_good=self._embedded)
        ledger.running.start_ready()
