"""The workers that dial in, as they say they are and as the operator wishes them to be; and how
long those that are away are waited for, in time that this process lived through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import structlog
from msgspec.structs import replace

from corral.core.worker import (
    NAMES_BYTES,
    ImageServer,
    Wishes,
    Withdrawn,
    Worker,
    kept,
    taken_by_others,
)
from corral.protocol import messages as wire

log = structlog.get_logger()

STEP_S = 1.0
ASLEEP_S = 1.0
"""A look that is late by more than this: it was us who stood still."""


class DialledWorkers:
    def __init__(
        self, known: Iterable[Worker], engine: str, local_id: str, wishes: Callable[[str], Wishes]
    ) -> None:
        self._engine, self._local_id, self._wishes = engine, local_id, wishes
        self._leaving: set[str] = set()
        """Those that said so: they take nothing new."""
        self._said: dict[str, wire.WorkerRegister] = {}
        """What connected ones said of themselves."""
        self._workers = {
            worker.id: self._as_wished(replace(worker, connected=False, readings=(), taken=()))
            for worker in known
        }

    def all(self) -> Sequence[Worker]:
        return list(self._workers.values())

    def get(self, worker: str) -> Worker | None:
        return self._workers.get(worker)

    def name(self, worker: str) -> str:
        return self._workers[worker].name if worker in self._workers else worker

    def name_of(self, register: wire.WorkerRegister) -> str:
        return self._wishes(register.worker_id).name or register.name or register.worker_id

    def join(self, register: wire.WorkerRegister) -> Worker:
        register = _shortened(register)
        self._said[register.worker_id] = register
        self._leaving.discard(register.worker_id)
        return self._keep(
            Worker(
                id=register.worker_id,
                name=self.name_of(register),
                engine=self._engine,
                capabilities=register.capabilities,
                local=register.worker_id == self._local_id,
                seen_at=time.time(),
                version=register.software_version,
                incarnation=register.incarnation,
                models=register.models,
                models_loaded=register.models_loaded,
                readings=register.readings,
                taken=taken_by_others(register.readings),
                servers=_shortened_servers(register.servers),
                withdrawn=register.withdrawn,
            )
        )

    def beat(self, worker: str, beat: wire.WorkerHeartbeat, now: float) -> bool:
        """Whether it can do something now that it could not do a moment ago."""
        if beat.leaving and worker not in self._leaving:
            self._leaving.add(worker)
            self._keep(self._workers[worker])
        known = self._workers[worker]
        taken = taken_by_others(beat.readings)
        new = replace(
            known,
            seen_at=now,
            load=beat.load,
            readings=beat.readings,
            taken=taken,
            models_loaded=beat.models_loaded[: kept(beat.models_loaded)],
            servers=known.servers if beat.servers is None else _shortened_servers(beat.servers),
            withdrawn=known.withdrawn if beat.withdrawn is None else _cut(beat.withdrawn),
        )
        said = self._said.get(worker)
        if beat.models is not None and said is not None:
            names = tuple(model.name for model in beat.models)
            names = names[: kept(names)]
            can = replace(said.capabilities, models_present=names)
            self._said[worker] = replace(said, capabilities=can)
            new = self._as_wished(replace(new, models=beat.models[: len(names)]))
        self._workers[worker] = new
        withdrew = new.withdrawn != known.withdrawn
        return taken != known.taken or withdrew or beat.models is not None

    def wish(self, worker: str) -> Worker:
        return self._keep(self._workers[worker])

    def disconnect(self, worker: str) -> Worker:
        """Without a word."""
        self._leaving.discard(worker)
        return self._keep(replace(self._workers[worker], connected=False))

    def leave(self, worker: str) -> None:
        """For good."""
        self._leaving.discard(worker)
        known = self._workers[worker]
        self._keep(replace(known, connected=False, left=True, seen_at=time.time()))

    def remove(self, worker: str) -> None:
        self._workers.pop(worker, None)
        self._said.pop(worker, None)

    def _keep(self, worker: Worker) -> Worker:
        wished = self._workers[worker.id] = self._as_wished(worker)
        return wished

    def _as_wished(self, worker: Worker) -> Worker:
        wishes = self._wishes(worker.id)
        said = self._said.get(worker.id)
        can = worker.capabilities if said is None else said.capabilities
        labels = tuple(dict.fromkeys((*can.labels, *wishes.labels)))
        return replace(
            worker,
            name=wishes.name or worker.name,
            draining=wishes.draining or worker.id in self._leaving,
            capabilities=replace(can, labels=labels),
        )


def _shortened(register: wire.WorkerRegister) -> wire.WorkerRegister:
    """With as many names of models as are kept."""
    can, loaded = register.capabilities, register.models_loaded
    present = can.models_present
    return replace(
        register,
        capabilities=replace(can, models_present=present[: kept(present)]),
        models=register.models[: kept(model.name for model in register.models)],
        models_loaded=loaded[: kept(loaded)],
        withdrawn=_cut(register.withdrawn),
    )


def _shortened_servers(servers: tuple[ImageServer, ...]) -> tuple[ImageServer, ...]:
    """With as many names as are kept; of a kind all or none, or a name would seem to be missing."""
    left, found = NAMES_BYTES, []
    for server in servers:
        names = {}
        for kind, some in server.names.items():
            left -= sum(map(len, some))
            if left >= 0:
                names[kind] = some
        found.append(replace(server, names=names))
    return tuple(found)


def _cut(withdrawn: Withdrawn) -> Withdrawn:
    return replace(withdrawn, models=withdrawn.models[: kept(withdrawn.models)])


class Graces:
    """A controller that stood still, or whose machine did, heard nobody meanwhile and blames nobody
    for it: the whole grace begins again. So it looks now and then instead of setting one timer."""

    def __init__(self, grace_s: float, over: Callable[[str], None]) -> None:
        self._grace_s, self._over = grace_s, over
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._timers

    def begin(self, worker: str, silent_s: float = 0.0) -> None:
        self._wait(worker, max(0.0, self._grace_s - silent_s))

    def end(self, worker: str) -> None:
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def _wait(self, worker: str, left_s: float) -> None:
        step_s = min(left_s, STEP_S)
        then = (worker, left_s - step_s, monotonic() + step_s)
        timer = asyncio.get_running_loop().call_later(step_s, self._look, *then)
        self._timers[worker] = timer

    def _look(self, worker: str, left_s: float, due: float) -> None:
        late_s = monotonic() - due
        if late_s > ASLEEP_S:
            log.warning("controller_stood_still", worker=worker, seconds=round(late_s, 1))
            left_s = self._grace_s
        if left_s > 0:
            self._wait(worker, left_s)
        else:
            del self._timers[worker]
            self._over(worker)
