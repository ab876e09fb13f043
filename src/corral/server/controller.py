"""The wiring of a controller, once, and its life from the first task to the last."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from corral import __version__, logs
from corral.contract.service import handler, server_options
from corral.controller.auth.roster import Roster
from corral.controller.auth.tailnet import MISSING, Tailnet
from corral.controller.auth.tokens import MESSAGES
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.controller.recovery.background_proof import BackgroundProof
from corral.core.errors import CorralError
from corral.core.job import JobId
from corral.core.limits import InputLimits
from corral.core.worker import Worker
from corral.engines import built
from corral.engines.engine import EngineContext
from corral.engines.local_agent import LocalAgent
from corral.home import Home, write_private_json
from corral.joining.discovery import Announcement
from corral.joining.invitation import bracketed
from corral.joining.trust import kept_certificate
from corral.protocol.parcels import SOCKET
from corral.reopening import keep_open
from corral.runtime.order import Renderer
from corral.runtime.standalone.ticket import AttemptTicket
from corral.server import listening
from corral.server.beside import kept_up
from corral.server.circle import Circle
from corral.server.doors import Doors
from corral.server.listening import rpc_server
from corral.server.own_addresses import OwnAddresses, ShownCertificate
from corral.server.storage import Storage
from corral.settings import Config, fast_paths

log = structlog.get_logger()

LOAD_AFTER_S = 1.0
"""How long after the first worker's word REST is loaded, where nobody asked for it before."""
FIRST_WORKER_WITHIN_S = 15.0
"""How long the first submissions wait for this machine's own worker to introduce itself."""
REMEMBER_S = 300.0
"""How often it is written down that workers are there: after kill -9 nobody else knows it."""


class Controller:
    def __init__(
        self,
        config: Config,
        home: Home,
        http_socket: socket.socket,
        limits: InputLimits = InputLimits(),  # noqa: B008 (it is frozen)
    ) -> None:
        self._home, self._http_socket = home, http_socket
        self._settings, self._fast = config.settings, fast_paths()
        self._limits = limits
        self._descriptors = listening.raised_limit()
        self._started_at = time.time()
        alone = listening.is_loopback(config.settings.host)
        self._secure = not alone or config.settings.tls == "always"
        self._asked_to_stop = asyncio.Event()
        self._asked_twice = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        failed = False
        async with AsyncExitStack() as stack:
            self._construct(stack)
            try:
                await self._open(stack)
                await self._until_stopped()
                failed = self._store.failed.is_set()
                await self._drain(now=failed)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        return 1 if failed else 0

    def _construct(self, stack: AsyncExitStack) -> None:
        settings, home, limits = self._settings, self._home, self._limits
        storage = Storage(settings, home, stack)
        self._world, self._store = storage.world, storage.store
        self._local = LocalAgent(home, settings.worker.name)
        self._roster = Roster(
            home.roster,
            local_id=self._local.worker_id,
            local_credential=self._local.credential,
        )
        engines = self._engines = built(
            settings.engines,
            EngineContext(
                settings,
                home,
                known=storage.journal.workers(),
                wishes=self._roster.wishes,
                is_enrolled=self._roster.knows,
                placed_on=lambda job, attempt: self._loop.placed_on(job, attempt),
                local_id=self._local.worker_id,
                ticket=lambda job, attempt: self._ticket(
                    job, attempt, storage.tokens.issue(job, attempt, MESSAGES)
                ),
                told=storage.spool.told,
            ),
        )
        circle = Circle(settings, home, limits, storage, engines, self._first_workers, stack)
        self._circle, self._loop, self._queue = circle, circle.loop, circle.queue
        self._own = OwnAddresses(settings)
        self._herd = WorkerAdmin(
            self._roster, self._store, self._loop, storage.access, self._own.invited
        )
        self._doors = Doors(
            settings,
            home,
            limits,
            storage,
            circle,
            self._herd,
            self._roster,
            health=self._health,
            descriptors=self._descriptors,
            started_at=self._started_at,
            any_address=self._secure,
        )
        self._has_own_worker = settings.worker.enabled and self._doors.has_workers_socket

    def _ticket(self, job: JobId, attempt: int, token: str) -> AttemptTicket:
        worker = self._settings.worker
        return AttemptTicket(
            self._url,
            job,
            attempt,
            token,
            self._certificate,
            folder=str(self._home.path / "standalone"),
            isolate=worker.isolate,
            spawn=worker.spawn,
            read_paths=worker.read_paths,
            write_paths=worker.write_paths,
            model_paths=worker.model_paths,
            renderer=Renderer(
                worker=worker.name or socket.gethostname().split(".")[0],
                driver="",
                backends=[entry.options() for entry in worker.backends],
            ),
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        port = self._http_socket.getsockname()[1]
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        reachable = bracketed(reachable)
        self._url = f"{'https' if self._secure else 'http'}://{reachable}:{port}"
        certificate, key = kept_certificate(self._home.tls) if self._secure else (None, None)
        self._certificate = str(certificate or "")
        pem = certificate.read_text(encoding="ascii") if certificate else ""
        shown = ShownCertificate(self._home.tls, key, self._own) if key else None
        for engine in self._engines.values():
            engine.open(self._world.held)
        self._circle.disk.look()
        share = int(self._descriptors * listening.HTTP_SHARE)
        file = shown.file if shown else None
        http = listening.http_server(self._doors.app, self._limits, share, file, key)
        rpc, grpc_port = rpc_server(
            settings,
            server_options(self._limits, int(self._descriptors * listening.GRPC_SHARE)),
            handler(self._doors.orchestrator, self._doors.orchestrator.refuse),
            shown.for_grpc() if shown else None,
        )
        self._ports, self._grpc = (port, grpc_port), f"{reachable}:{grpc_port}"
        self._herd.open(port, grpc_port, pem)
        if shown is not None:
            shown.http = http
            self._be_found(stack, port, shown)
        self._tell_of_moved_workers()
        self._local.introduce(self._url, pem)
        self._begin(http)
        if self._has_own_worker:
            self._tasks.append(self._beside("local agent", self._local.run))
            stack.push_async_callback(self._local.end)
        await rpc.start()
        stack.push_async_callback(rpc.stop, 0.5)
        calls = self._home.path / SOCKET
        if "local_socket" in self._fast:
            await self._doors.local.open(calls)
            stack.push_async_callback(self._doors.local.close, calls)
        self._write_card()
        log.info(
            "controller_up",
            http=self._url,
            grpc=self._grpc,
            home=str(self._home.path),
            jobs=len(self._world.heads),
        )
        if self._secure and not logs.is_stderr(self._home.log_file):  # a log is no place for it
            await self._invite()

    def _tell_of_moved_workers(self) -> None:
        if moved := self._herd.moved():
            log.warning("workers_look_elsewhere", told=moved)
            print(f"corral: {moved}", file=sys.stderr, flush=True)

    def _be_found(self, stack: AsyncExitStack, port: int, shown: ShownCertificate) -> None:
        """At every address that this machine has, or gets while we run; by machines that want to
        join, where the settings say so."""
        settings, announcement = self._settings, None
        if settings.discoverable and not listening.is_loopback(settings.host):
            self._herd.take_requests()
            hostname = socket.gethostname().split(".")[0]
            announcement = Announcement(hostname, self._herd.mark(), port)
            stack.push_async_callback(announcement.close)

        def moved(address: str) -> None:
            log.info("address_changed", address=address)
            self._herd.move(address)
            self._write_card()
            self._tell_of_moved_workers()

        self._tasks.append(
            self._beside("own addresses", lambda: self._own.follow(shown, announcement, moved))
        )
        if settings.auth == "tailscale":
            if Tailnet.is_installed():
                self._herd.tailnet = Tailnet(settings.tailscale_allow)
            else:
                log.warning("tailscale_missing")
                print(f"corral: {MISSING}", file=sys.stderr, flush=True)

    def _begin(self, http: listening.Http) -> None:
        """If what the journal depends on fails, the controller ends; other parts begin again."""
        circle = self._circle
        self._tasks += [
            asyncio.create_task(http.serve(sockets=[self._http_socket]), name="http"),
            *(asyncio.create_task(intake.run(), name="intake") for intake in circle.intakes),
            asyncio.create_task(self._loop.run(), name="loop"),
            self._beside("recalling", circle.recalling.run),
            self._beside("disk guard", circle.disk.run),
            self._beside("open folders", lambda: keep_open(self._home.kept_open)),
            self._beside("retention", circle.retention.run),
            self._beside("notifier", circle.notifier.run),
            self._beside("learning", circle.learnings.run),
            self._beside("learning runs", self._doors.learning_runs.run),
            self._beside("journal proof", BackgroundProof(self._store).run),
            self._beside("loading", self._load_the_rest),
            self._beside("remembering workers", self._remember_workers),
        ]

    def _write_card(self) -> None:
        """How clients of this home find us."""
        address = self._own.invited
        beyond = self._secure and not listening.is_loopback(address)
        place, (port, grpc_port) = bracketed(address), self._ports
        elsewhere = {"http": f"https://{place}:{port}", "grpc": f"{place}:{grpc_port}"}
        log_file = self._home.log_file
        write_private_json(
            self._home.controller,
            {
                "pid": os.getpid(),
                "http": self._url,
                "grpc": self._grpc,
                "elsewhere": elsewhere if beyond else {},
                "certificate": self._certificate,
                "started_at": self._started_at,
                "log": str(log_file) if logs.is_stderr(log_file) else "stderr",
            },
        )

    async def _invite(self) -> None:
        try:
            invited, _ = await self._herd.invite_worker()
        except CorralError as error:  # a full disk, for one, is no reason to end
            print(f"corral: {error.message}", file=sys.stderr, flush=True)
            return
        print(
            f"To add a Linux machine, run there:\n\n  {invited.shell(self._herd.pin())}\n\n"
            f"Where Corral is installed already:\n\n  {invited.command()}\n\n"
            "They are good for a day. `corral invite` prints new ones, and the line for Windows.\n",
            flush=True,
        )

    def _beside(self, name: str, part: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(kept_up(name, part), name=name)

    async def _until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self._ask_to_stop)
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._asked_to_stop.wait()),
            asyncio.create_task(self._store.failed.wait()),
        ]
        try:
            done, _ = await asyncio.wait(
                [*waits, *self._tasks], return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waits:
                task.cancel()
        for task in done:
            if task in self._tasks:
                task.result()  # the journal depends on it, so it is a bug: let it be seen
                raise RuntimeError(f"The {task.get_name()} task ended by itself.")

    def _ask_to_stop(self) -> None:
        if self._asked_to_stop.is_set():
            self._asked_twice.set()
        self._asked_to_stop.set()

    async def _drain(self, *, now: bool) -> None:
        """No new work; what runs on this machine gets its grace, then goes back to the queue.
        Other machines go on, as they do when we are killed."""
        self._queue.stopping = self._loop.paused = self._local.stopping = True
        grace_s = 0.0 if now else self._settings.shutdown_grace_s
        log.info("controller_stopping", grace_s=grace_s)
        engines = self._engines.values()
        waits: Sequence[asyncio.Future[Any]] = [
            asyncio.gather(*(one.drain(grace_s) for one in engines), return_exceptions=True),
            asyncio.create_task(self._asked_twice.wait()),
        ]
        await asyncio.wait(waits, timeout=grace_s + 5.0, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        if not now:
            with contextlib.suppress(TimeoutError):  # what the goodbyes meant goes to the disk
                async with asyncio.timeout(5.0):
                    await asyncio.gather(*(one.close() for one in engines), return_exceptions=True)
            await self._note_workers()

    async def _remember_workers(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_S)
            await self._note_workers()

    async def _note_workers(self) -> None:
        """When those that are connected were last heard of."""
        there = [worker for worker in self._loop.workers() if worker.connected]
        if there:
            with contextlib.suppress(CorralError):  # a full disk is told of elsewhere
                await self._store.append([], workers=there)
                await self._roster.reached(worker.id for worker in there)

    # --- small answers ---

    async def _first_workers(self) -> list[Worker]:
        """The first moments wait for this machine's own worker to say what it has."""
        workers = self._loop.workers()
        deadline = self._started_at + FIRST_WORKER_WITHIN_S
        while (
            not any(worker.connected for worker in workers)
            and self._has_own_worker
            and time.time() < deadline
        ):
            await asyncio.sleep(0.02)
            workers = self._loop.workers()
        return workers

    async def _load_the_rest(self) -> None:
        """Nobody should have to wait for REST; but the first moments belong to the work."""
        await self._first_workers()
        await asyncio.sleep(LOAD_AFTER_S)
        await self._doors.first_answers.loaded()
        await asyncio.Event().wait()  # like the others, this task ends with the controller

    async def _health(self) -> tuple[int, dict[str, object]]:
        workers = self._loop.workers()
        stopping, damage = self._queue.stopping, self._store.snapshots.damage
        trouble = self._loop.fleet.trouble()
        status, reason = self._queue.condition()
        unproven = not damage and self._store.snapshots.unproven
        return 503 if stopping else 200, {
            "status": status,
            "reason": reason,
            "engines": {name: trouble.get(name, "ok") for name in self._engines},
            "journal": "damaged" if damage else "being proven" if unproven else "whole",
            "version": __version__,
            "pid": os.getpid(),
            "workers": sum(worker.connected for worker in workers),
            "queued": sum(self._world.waiting.values()),
            "running": sum(len(held) for held in self._world.held.values()),
            "running_here": len(self._world.held.get(self._local.worker_id, {})),
        }
