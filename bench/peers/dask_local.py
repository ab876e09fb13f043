"""Dask on one machine: a scheduler, a worker with two threads, and the measuring client."""

from __future__ import annotations

import time
from collections.abc import Sequence

import measuring
from distributed import Client, LocalCluster


def nothing(_: str) -> None:
    return None


def main() -> None:
    asked = measuring.options()
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=True,
            dashboard_address=None,
            local_directory=str(asked.folder),
        ) as cluster,
        Client(cluster) as client,
    ):
        kept = []

        def many(items: Sequence[str]) -> int:
            return len(client.gather(client.map(nothing, items, pure=False)))

        def one(item: str) -> object:
            return client.submit(nothing, item, pure=False).result()

        def submit(item: str) -> None:
            if not kept:
                kept.extend(client.submit(time.sleep, 20, pure=False) for _ in range(2))
            kept.append(client.submit(nothing, item, pure=False))

        found = measuring.measure(
            asked, many=many, one=one, submit=submit, versions=("distributed",)
        )
        measuring.report(found)


if __name__ == "__main__":
    main()
