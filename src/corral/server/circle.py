"""The circle that decides, wired: queue, loop, engines, intakes, and who follows their commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from msgspec import structs

from corral.controller.early_starts import EarlyStarts
from corral.controller.engines.fleet import Fleet
from corral.controller.engines.recalling import Recalling
from corral.controller.files.disk import DiskGuard
from corral.controller.history.retention import Retention
from corral.controller.images.learning import Learnings
from corral.controller.intake import Intake
from corral.controller.loop import Loop, Pause
from corral.controller.output.feed import Feed
from corral.controller.output.loop_turns import LoopTurns
from corral.controller.queue import Queue
from corral.controller.status.job_log import JobLog
from corral.controller.status.statistics import Statistics
from corral.controller.webhooks.notify import Notifier, Timing
from corral.core.limits import InputLimits
from corral.core.worker import Worker
from corral.engines.engine import Engine
from corral.home import Home
from corral.scheduler.circuit import Breaker
from corral.scheduler.plan import decide, decide_plainly
from corral.scheduler.settle import Policy
from corral.server.storage import Storage
from corral.settings import Settings, fast_paths

MAX_BACKOFF = 60.0
"""How many times as long as the first one the longest pause before a retry is."""


class Circle:
    def __init__(
        self,
        settings: Settings,
        home: Home,
        limits: InputLimits,
        storage: Storage,
        engines: Mapping[str, Engine],
        first_workers: Callable[[], Awaitable[Sequence[Worker]]],
        stack: AsyncExitStack,
    ) -> None:
        self._settings, self._storage, self._fast = settings, storage, fast_paths()
        store, vault = storage.store, storage.vault
        backoff_s = settings.backoff_s
        policy = Policy(settings.max_losses, backoff_s, MAX_BACKOFF * backoff_s)
        self.retention = Retention(store, storage.blobs, storage.spool, settings.retention)
        self.disk = DiskGuard(
            home.path, **structs.asdict(settings.disk), changed=self._disk_changed
        )
        self.turns = LoopTurns()
        self.feed = Feed(store, storage.spool, self.turns)
        self.loop = Loop(
            store,
            Fleet(engines),
            storage.tokens,
            vault,
            aging_s=settings.aging_s,
            pause=Pause(home.queue),
            keep_for_interactive=settings.keep_for_interactive,
            backoff_max_s=policy.backoff_max_s,
            decide=decide if "columns" in self._fast else decide_plainly,
        )
        self.recalling = Recalling(store, self.loop)
        for engine in engines.values():
            engine.changed = self.loop.wake
        self.queue = self._queue(limits, first_workers)
        self.notifier = Notifier(
            store,
            vault,
            home.notify,
            webhooks=settings.notify,
            batch_secret=settings.notify_secret,
            timing=Timing(give_up_s=settings.notify_give_up_s, settle_s=settings.notify_settle_s),
        )
        stack.push_async_callback(self.notifier.close)
        self.learnings = Learnings(store, storage.blobs, home.learning)
        stack.callback(self.learnings.close)
        self.intakes = [self._intake(engine, policy) for engine in engines.values()]
        self.statistics = Statistics()
        self.statistics.listen(store)
        narration = JobLog(lambda: storage.world.names)
        store.listen(narration.take)
        stack.callback(narration.flush)
        self.loop.decided = self.statistics.decisions.add

    def _queue(
        self, limits: InputLimits, first_workers: Callable[[], Awaitable[Sequence[Worker]]]
    ) -> Queue:
        storage = self._storage
        early = EarlyStarts(storage.store, self.loop, room_to_spare=self.disk.has_spare)
        return Queue(
            storage.store,
            storage.blobs,
            self.loop,
            first_workers=first_workers,
            vault=storage.vault,
            assets=storage.assets,
            document_limit=limits.document_bytes,
            cancel_grace_s=self._settings.cancel_grace_s,
            check_room=self.disk.check,
            accept=early.accept if "early_starts" in self._fast else None,
        )

    def _intake(self, engine: Engine, policy: Policy) -> Intake:
        return Intake(
            engine,
            self._storage.store,
            self._storage.spool,
            policy=policy,
            breaker=Breaker(**structs.asdict(self._settings.circuit)),
            loop=self.loop,
            heard=self.feed.heard,
            stop_grace_s=self._settings.cancel_grace_s,
            notice=self.notifier.worker,
        )

    def _disk_changed(self) -> None:
        self.loop.full = self.disk.reason
        self.loop.wake()
        if self.disk.full:
            self.retention.wake()
