"""The wiring of a controller, once, and its life from the first task to the last."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import structlog
from msgspec import structs
from starlette.types import ASGIApp

from corral import __version__, logs
from corral.api.auth import Hosts, bearer
from corral.api.first_answers import FirstAnswers, guarded
from corral.api.local_door import LocalDoor
from corral.api.parts import Parts
from corral.api.rpc import Orchestrator
from corral.api.streams import Streams
from corral.api.worker_socket import WorkerSocket
from corral.contract.service import handler, server_options
from corral.controller.access import Access
from corral.controller.artifact_index import ArtifactIndex
from corral.controller.artifacts import Artifacts
from corral.controller.assets import Assets
from corral.controller.background_proof import BackgroundProof
from corral.controller.backup import Backups
from corral.controller.blobs import Blobs
from corral.controller.bucket import ACCESS_KEY, SECRET_KEY, Bucket
from corral.controller.condition import condition
from corral.controller.descriptors import grpc_share, http_share, local_share, raised_limit
from corral.controller.disk import DiskGuard
from corral.controller.early_starts import EarlyStarts
from corral.controller.feed import Feed
from corral.controller.fleet import Fleet
from corral.controller.herd import Herd
from corral.controller.intake import Intake
from corral.controller.journal import Journal
from corral.controller.learning import Learnings
from corral.controller.learning_runs import LearningRuns
from corral.controller.listing import Listing
from corral.controller.loop import Loop
from corral.controller.loop_turns import LoopTurns
from corral.controller.narration import Narration
from corral.controller.notify import Notifier
from corral.controller.notify_lanes import Timing
from corral.controller.output_text import OutputText
from corral.controller.pause import Pause
from corral.controller.plans import Plans, check_base
from corral.controller.presets import Presets
from corral.controller.queue import Queue
from corral.controller.recalling import Recalling
from corral.controller.retention import Limits, Retention
from corral.controller.roster import Roster
from corral.controller.spool import Spool
from corral.controller.statistics import Statistics
from corral.controller.store import Store
from corral.controller.tailnet import MISSING, Tailnet
from corral.controller.tokens import MESSAGES, AttemptTokens, kept_secret
from corral.controller.vault import Vault
from corral.controller.world import World
from corral.core.access import Role
from corral.core.errors import CorralError
from corral.core.job import JobId
from corral.core.limits import InputLimits
from corral.core.worker import Worker
from corral.discovery import Announcement
from corral.engines import built
from corral.engines.dialled import Dialled
from corral.engines.engine import EngineContext
from corral.engines.local_agent import LocalAgent
from corral.home import Home, write_private_json
from corral.invitation import bracketed
from corral.protocol.parcels import SOCKET
from corral.reopening import keep_open
from corral.runtime.order import Renderer
from corral.runtime.standalone.ticket import AttemptTicket
from corral.scheduler.circuit import Breaker
from corral.scheduler.plan import decide, decide_plainly
from corral.scheduler.settle import Policy
from corral.server.beside import kept_up
from corral.server.listening import http_server, is_loopback, listen, own_address
from corral.settings import Config, fast_paths
from corral.shared_root import SharedRoot
from corral.trust import kept_certificate

log = structlog.get_logger()

LOAD_AFTER_S = 1.0
"""How long after the first worker's word REST is loaded, where nobody asked for it before."""
FIRST_WORKER_WITHIN_S = 15.0
"""How long the first submissions wait for this machine's own worker to introduce itself."""


MAX_BACKOFF = 60.0
"""How many times as long as the first one the longest pause before a retry is."""
REMEMBER_S = 300.0
"""How often it is written down that workers are there: after kill -9 nobody else knows it."""


def _calm_collector() -> None:
    """What is here stays for good, and most of what comes has no cycles: Python's collector would
    look through the whole queue again and again, for a tenth of the controller's time. The middle
    generation is looked through often, while it is small: everybody waits meanwhile, and twenty
    young ones together, as thousands of new readers make them, take a fifth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 1, 400)


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
        self._descriptors = raised_limit()
        self._started_at = time.time()
        alone = is_loopback(config.settings.host)
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
        backoff_s = settings.backoff_s
        policy = Policy(settings.max_losses, backoff_s, MAX_BACKOFF * backoff_s)
        hostname = socket.gethostname().split(".")[0]
        journal = Journal(home.journal)
        self._world = World()
        self._store = Store(journal, self._world)
        stack.push_async_callback(self._store.close)
        self._store.recover()
        _calm_collector()
        self._spool = Spool(home.spool, settings.output_limit)
        stack.callback(self._spool.close)
        blobs = Blobs(home.blobs)
        tokens = AttemptTokens(kept_secret(home.transfer_key))
        access = Access(home.tokens, kept_secret(home.token))
        streams = Streams(limits.streams)
        listing = Listing(self._store)
        stack.callback(listing.close)
        kept_back = (ACCESS_KEY, SECRET_KEY)
        vault = Vault(home.secrets, kept_back=kept_back if settings.assets.bucket else ())
        assets = Assets(
            blobs,
            limit=settings.asset_limit,
            root=SharedRoot(settings.assets.root),
            spellings=settings.assets.spellings,
            bucket=Bucket(settings.assets, vault) if settings.assets.bucket else None,
        )
        artifacts = Artifacts(
            blobs, assets, limit=settings.artifact_limit, where=settings.assets.artifacts
        )
        self._local = LocalAgent(home, settings.worker.name)
        self._roster = Roster(
            home.roster,
            home.enrolment_key,
            local_id=self._local.worker_id,
            local_credential=self._local.credential,
        )
        engines = self._engines = built(
            settings.engines,
            EngineContext(
                settings,
                home,
                known=journal.workers(),
                wishes=self._roster.wishes,
                is_enrolled=self._roster.knows,
                placed_on=lambda job, attempt: self._loop.placed_on(job, attempt),
                local_id=self._local.worker_id,
                ticket=lambda job, attempt: self._ticket(
                    job, attempt, tokens.issue(job, attempt, MESSAGES)
                ),
                told=self._spool.told,
            ),
        )
        self._retention = Retention(
            self._store, blobs, self._spool, Limits(**structs.asdict(settings.retention))
        )
        self._disk = DiskGuard(
            home.path, **structs.asdict(settings.disk), changed=self._disk_changed
        )
        turns = LoopTurns()
        self._feed = Feed(self._store, self._spool, turns)
        self._loop = Loop(
            self._store,
            Fleet(engines),
            tokens,
            vault,
            aging_s=settings.aging_s,
            pause=Pause(home.queue),
            keep_for_interactive=settings.keep_for_interactive,
            backoff_max_s=policy.backoff_max_s,
            decide=decide if "columns" in self._fast else decide_plainly,
        )
        self._recalling = Recalling(self._store, self._loop)
        for engine in engines.values():
            engine.changed = self._loop.wake
        early = EarlyStarts(self._store, self._loop, room_to_spare=self._disk.has_spare)
        self._queue = Queue(
            self._store,
            blobs,
            self._loop,
            first_workers=self._first_workers,
            vault=vault,
            assets=assets,
            document_limit=limits.document_bytes,
            cancel_grace_s=settings.cancel_grace_s,
            check_room=self._disk.check,
            accept=early.accept if "early_starts" in self._fast else None,
        )
        self._notifier = Notifier(
            self._store,
            vault,
            home.notify,
            webhooks=settings.notify,
            batch_secret=settings.notify_secret,
            timing=Timing(give_up_s=settings.notify_give_up_s, settle_s=settings.notify_settle_s),
        )
        stack.push_async_callback(self._notifier.close)
        self._learnings = Learnings(self._store, blobs, home.learning)
        stack.callback(self._learnings.close)
        self._intakes = [
            Intake(
                engine,
                self._store,
                self._spool,
                policy=policy,
                breaker=Breaker(**structs.asdict(settings.circuit)),
                loop=self._loop,
                heard=self._feed.heard,
                stop_grace_s=settings.cancel_grace_s,
                notice=self._notifier.worker,
            )
            for engine in engines.values()
        ]
        self._address = settings.advertise or own_address(settings.host)
        self._herd = Herd(
            self._roster,
            self._store,
            self._loop,
            access,
            self._address,
        )
        presets = Presets(home.presets, check_base)
        plans = Plans(self._queue, self._loop, self._learnings.paces, presets)
        self._runs = LearningRuns(plans, self._learnings, self._store, home.learning / "runs")
        parts = Parts(
            store=self._store,
            blobs=blobs,
            assets=assets,
            artifacts=artifacts,
            artifact_index=ArtifactIndex(self._store),
            feed=self._feed,
            queue=self._queue,
            loop=self._loop,
            listing=listing,
            output=OutputText(self._spool),
            access=access,
            herd=self._herd,
            streams=streams,
            turns=turns,
            limits=limits,
            package_limit=settings.package_limit,
            plans=plans,
            version=__version__,
            started_at=self._started_at,
            learnings=self._learnings,
            learning_runs=self._runs,
            vault=vault,
            backups=Backups(home, self._retention, __version__),
        )
        self._orchestrator = Orchestrator(parts)
        statistics = Statistics()
        statistics.listen(self._store)
        narration = Narration(lambda: self._world.names)
        self._store.listen(narration.take)
        stack.callback(narration.flush)
        self._loop.decided = statistics.decisions.add
        self._local_door = LocalDoor(
            self._orchestrator.submit, access, limits, local_share(self._descriptors)
        )

        def rest() -> ASGIApp:
            from corral.api.attempt_door import AttemptDoor
            from corral.api.http import Transfers, application
            from corral.api.metrics import Metrics, Sources

            metrics = Metrics(
                Sources(
                    statistics=statistics,
                    store=self._store,
                    loop=self._loop,
                    blobs=blobs,
                    spool=self._spool,
                    version=__version__,
                    started_at=self._started_at,
                )
            )
            transfers = Transfers(
                self._store,
                blobs,
                tokens,
                assets=assets,
                artifacts=artifacts,
                limits=limits,
                artifact_limit=settings.artifact_limit,
                early=self._loop.early,
            )
            return application(
                transfers=transfers,
                attempt_door=AttemptDoor(
                    self._store,
                    tokens,
                    vault,
                    current=transfers.current,
                    engines=engines,
                    limits=limits,
                    output_limit=settings.output_limit,
                    artifacts=artifacts.where,
                ),
                health=self._health,
                parts=parts,
                metrics=metrics.router(
                    lambda header: access.caller(bearer(header)).needs(Role.READ)
                ),
                clock=time.time,
            )

        dialled = next((one for one in engines.values() if isinstance(one, Dialled)), None)
        workers: WorkerSocket | None = None
        if dialled is not None:
            workers = WorkerSocket(
                dialled,
                self._roster.is_worker,
                heartbeat_s=settings.heartbeat_s,
                grace_s=settings.grace_s,
                knows=self._roster.knows,
                recognises=self._roster.recognises,
                artifacts=artifacts.where,
            )
        self._has_own_worker = settings.worker.enabled and dialled is not None
        self._first_answers = FirstAnswers(workers, self._health, rest, turns)
        own = [settings.host, settings.advertise, hostname, f"{hostname}.local"]
        self._app = guarded(self._first_answers, Hosts(own, any_address=self._secure))

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
                worker.name or socket.gethostname().split(".")[0],
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
        for engine in self._engines.values():
            engine.open(self._world.held)
        self._disk.look()
        http = http_server(self._app, self._limits, http_share(self._descriptors), certificate, key)
        options = server_options(self._limits, grpc_share(self._descriptors))
        rpc = grpc.aio.server(options=options)
        rpc.add_generic_rpc_handlers((handler(self._orchestrator, self._orchestrator.refuse),))
        # gRPC says on stderr, in its own words, that a port is taken: ask first, in ours.
        listen(settings.host, settings.grpc_port, "--grpc-port").close()
        door = f"{bracketed(settings.host)}:{settings.grpc_port}"
        if key is None:
            grpc_port = rpc.add_insecure_port(door)
        else:
            pair = (key.read_bytes(), pem.encode())
            grpc_port = rpc.add_secure_port(door, grpc.ssl_server_credentials([pair]))
        self._herd.open(port, grpc_port, pem)
        if settings.discoverable and not is_loopback(settings.host):
            self._herd.take_requests()
            hostname = socket.gethostname().split(".")[0]
            announcement = Announcement(hostname, self._address, port)
            announcement.begin()
            stack.push_async_callback(announcement.close)
        if settings.auth == "tailscale" and self._secure:
            if Tailnet.is_installed():
                self._herd.tailnet = Tailnet(settings.tailscale_allow)
            else:
                log.warning("tailscale_missing")
                print(f"corral: {MISSING}", file=sys.stderr, flush=True)
        beyond = self._secure and not is_loopback(self._address)
        place = bracketed(self._address)
        elsewhere = {"http": f"https://{place}:{port}", "grpc": f"{place}:{grpc_port}"}
        self._tell_of_move(self._herd.moved())
        self._local.introduce(self._url, pem)
        self._tasks += [
            asyncio.create_task(http.serve(sockets=[self._http_socket]), name="http"),
            *(asyncio.create_task(intake.run(), name="intake") for intake in self._intakes),
            asyncio.create_task(self._loop.run(), name="loop"),
            self._beside("recalling", self._recalling.run),
            self._beside("disk guard", self._disk.run),
            self._beside("open folders", lambda: keep_open(self._home.kept_open)),
            self._beside("retention", self._retention.run),
            self._beside("notifier", self._notifier.run),
            self._beside("learning", self._learnings.run),
            self._beside("learning runs", self._runs.run),
            self._beside("journal proof", BackgroundProof(self._store).run),
            self._beside("loading", self._load_the_rest),
            self._beside("remembering workers", self._remember_workers),
        ]
        if self._has_own_worker:
            self._tasks.append(self._beside("local agent", self._local.run))
            stack.push_async_callback(self._local.end)
        await rpc.start()
        stack.push_async_callback(rpc.stop, 0.5)
        calls = self._home.path / SOCKET
        if "local_socket" in self._fast:
            await self._local_door.open(calls)
            stack.push_async_callback(self._local_door.close, calls)
        log_file = self._home.log_file
        write_private_json(
            self._home.controller,
            {
                "pid": os.getpid(),
                "http": self._url,
                "grpc": f"{reachable}:{grpc_port}",
                "elsewhere": elsewhere if beyond else {},
                "certificate": str(certificate or ""),
                "started_at": self._started_at,
                "log": str(log_file) if logs.is_stderr(log_file) else "stderr",
            },
        )
        log.info(
            "controller_up",
            http=self._url,
            grpc=f"{reachable}:{grpc_port}",
            home=str(self._home.path),
            jobs=len(self._world.heads),
        )
        if self._secure and not logs.is_stderr(log_file):  # a log is no place for it
            await self._invite()

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

    def _tell_of_move(self, moved: str) -> None:
        if moved:
            log.warning("workers_look_elsewhere", told=moved)
            print(f"corral: {moved}", file=sys.stderr, flush=True)

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
                task.result()  # what the truth goes through ended: a bug, let it be seen
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
        await self._first_answers.loaded()
        await asyncio.Event().wait()  # like the others, this task ends with the controller

    def _disk_changed(self) -> None:
        self._loop.full = self._disk.reason
        self._loop.wake()
        if self._disk.full:
            self._retention.wake()

    async def _health(self) -> tuple[int, dict[str, object]]:
        workers = self._loop.workers()
        stopping, damage = self._queue.stopping, self._store.snapshots.damage
        trouble = self._loop.fleet.trouble()
        status, reason = condition(self._queue, self._store, self._loop)
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
