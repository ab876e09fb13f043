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
)
