"""`make chaos`: random faults over a few thousand jobs on three workers, and no law broken.

The faults follow from the seed alone; how the cluster takes them also depends on how fast this
machine is, so a seed finds the same weak spot again, not always the same microsecond.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos import power_disk
from tests.chaos.inflict import Inflictor
from tests.chaos.invariants import Invariants, Violation
from tests.chaos.schedule import GRACE_S, KINDS, schedule
from tests.chaos.work import Clients
from tests.eventually import eventually
from tests.network import machines, wires
from tests.network.machines import Cluster

WORKERS = ("w1", "w2", "w3")
LOOK_S = 1.0
RATE = 16.0
REST_S = 90.0
"""Within so much time after the last fault everything has come to rest."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description="Random faults, seeded.")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--jobs", type=int, help=f"at most so many [{RATE:g} a second]")
    asked = parser.parse_args()
    asked.jobs = asked.jobs or int(asked.seconds * RATE)
    if why := wires.unavailable() or machines.no_clock() or power_disk.unavailable():
        sys.stderr.write(f"make chaos: {why}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(f"chaos: seed {asked.seed}, {asked.seconds:g} s, {len(WORKERS)} workers", flush=True)
    with _cluster() as cluster:
        clients = Clients(cluster, asked.seed, asked.jobs, asked.seconds)
        inflictor, invariants = Inflictor(cluster, clients), Invariants(cluster, clients)
        wrong = ""
        try:
            _wreak(cluster, clients, inflictor, invariants, asked)
        except (Violation, AssertionError) as error:
            wrong = str(error)
        _report(inflictor, invariants, clients)
        if not wrong:
            return 0
        kept = _logs(cluster)
    again = f"make chaos ARGS='--seed {asked.seed} --seconds {asked.seconds:g}'"
    sys.stderr.write(f"chaos: {wrong}\nLogs: {kept}\nAgain: {again}\n")
    return 1


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        network = wires.Network(["controller", *WORKERS])
        stack.callback(network.close)
        place = Path(tempfile.mkdtemp(prefix="corral-chaos-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        cluster = Cluster(
            network, place, WORKERS, own_worker=True, grace_s=GRACE_S, disk=power_disk.roomy
        )
        stack.callback(cluster.stop)
        try:
            cluster.start()
        except Exception:
            sys.stderr.write(f"chaos: the cluster did not come up. Logs: {_logs(cluster)}\n")
            raise
        yield cluster


def _logs(cluster: Cluster) -> Path:
    """What everybody said, and the journal, before their disks are gone."""
    kept = Path(tempfile.mkdtemp(prefix="corral-chaos-logs-"))
    shutil.copytree(cluster.controller.home / "journal", kept / "journal")
    shutil.copy(cluster.controller.home / "test.log", kept / "controller.log")
    for worker in cluster.workers.values():
        shutil.copy(worker.home / "out", kept / f"{worker.name}.log")
    return kept


def _wreak(
    cluster: Cluster,
    clients: Clients,
    inflictor: Inflictor,
    invariants: Invariants,
    asked: argparse.Namespace,
) -> None:
    begun = time.monotonic()
    inflictor.plan(schedule(asked.seed, asked.seconds, WORKERS), begun)
    clients.start()
    looked = begun
    while time.monotonic() < begun + asked.seconds or inflictor.busy:
        inflictor.turn()
        if time.monotonic() > looked + LOOK_S:
            invariants.look()
            looked = time.monotonic()
        time.sleep(0.02)
    cluster.mend()
    clients.stop()

    def at_rest() -> bool:
        inflictor.turn()
        invariants.look()
        return not invariants.unended()

    eventually(at_rest, "every accepted job ends", REST_S)
    invariants.final()
    for worker in cluster.workers.values():
        worker.stop()
    invariants.processes()


def _report(inflictor: Inflictor, invariants: Invariants, clients: Clients) -> None:
    out = Console(width=80, highlight=False)
    faults = Table("fault", "injected", title=f"{len(clients.accepted)} jobs accepted")
    for kind in KINDS:
        faults.add_row(kind, str(inflictor.injected[kind]))
    held = Table("invariant", "held")
    for name, count in invariants.held.items():
        held.add_row(name, str(count))
    out.print(faults, held)


if __name__ == "__main__":
    sys.exit(main())
