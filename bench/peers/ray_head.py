"""Ray on one machine: its head with two CPUs, and the measuring client as its driver."""

from __future__ import annotations

import time
from collections.abc import Sequence

import measuring
import ray


@ray.remote
def nothing(_: str) -> None:
    return None


@ray.remote
def hold(seconds: float) -> None:
    time.sleep(seconds)


def many(items: Sequence[str]) -> int:
    return len(ray.get([nothing.remote(item) for item in items]))


def one(item: str) -> object:
    return ray.get(nothing.remote(item))


def main() -> None:
    asked = measuring.options()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(asked.folder),
    )
    held = []

    def submit(item: str) -> object:
        if not held:
            held.extend(hold.remote(20) for _ in range(2))  # both slots: what follows waits
        return nothing.remote(item)

    found = measuring.measure(asked, many=many, one=one, submit=submit, versions=("ray",))
    measuring.report(found)
    ray.shutdown()


if __name__ == "__main__":
    main()
