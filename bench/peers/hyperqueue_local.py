"""HyperQueue's own cluster on one machine: a worker with two cores, and the measuring client."""

from __future__ import annotations

from collections.abc import Sequence

import measuring
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.protocol import ResourceRequest


def main() -> None:
    asked = measuring.options()
    with LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=2))
        client = cluster.client()

        def job(items: Sequence[str], cpus: int = 1) -> Job:
            made = Job(asked.folder, max_fails=1)
            for item in items:
                made.program(
                    ["true", item], stdout=None, stderr=None, resources=ResourceRequest(cpus=cpus)
                )
            return made

        def many(items: Sequence[str]) -> int:
            client.wait_for_jobs([client.submit(job(items))])
            return len(items)

        def one(item: str) -> object:
            return client.wait_for_jobs([client.submit(job([item]))])

        def submit(item: str) -> object:
            return client.submit(job([item], cpus=64))  # more than there are: it waits

        found = measuring.measure(
            asked, many=many, one=one, submit=submit, versions=("hyperqueue",)
        )
    measuring.report(found)


if __name__ == "__main__":
    main()
