"""Huey on SQLite: its task, its consumer, and the measuring client."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
from huey import SqliteHuey

FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
SYNCED = os.environ.get("BENCH_VARIANT") == "durable"
huey = SqliteHuey(filename=str(FOLDER / "queue.db"), fsync=SYNCED)
idle = SqliteHuey("waiting", filename=str(FOLDER / "queue.db"), fsync=SYNCED)


@huey.task()
def nothing(_: str) -> bool:
    return True


@idle.task()
def waiting(_: str) -> bool:
    return True


def _value(result: Any) -> object:
    return result.get(blocking=True, timeout=300, backoff=1.0, max_delay=0.001)


def many(items: Sequence[str]) -> int:
    results = [nothing(item) for item in items]
    return sum(_value(result) is True for result in results)


def one(item: str) -> object:
    return _value(nothing(item))


def main() -> None:
    asked = measuring.options()
    os.environ |= {"BENCH_FOLDER": str(asked.folder), "BENCH_VARIANT": asked.variant}
    import huey_sqlite  # this module again, with the settings of the variant

    consumer = [sys.executable, "-m", "huey.bin.huey_consumer", "huey_sqlite.huey", "--quiet"]
    quick = ["--workers", "2", "--delay", "0.001", "--max-delay", "0.001", "--no-periodic"]
    with measuring.running([*consumer, *quick], cwd=Path(__file__).parent):
        huey_sqlite.one("warm")
        found = measuring.measure(
            asked,
            many=huey_sqlite.many,
            one=huey_sqlite.one,
            submit=huey_sqlite.waiting,
            versions=("huey",),
        )
    measuring.report(found)


if __name__ == "__main__":
    main()
