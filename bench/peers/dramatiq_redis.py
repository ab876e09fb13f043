"""Dramatiq on Redis: its actors, their worker's settings, and the measuring client."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dramatiq
import measuring
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def nothing(_: str) -> bool:
    return True  # a None would be stored like any value, and warned about


@dramatiq.actor(store_results=True, queue_name="waiting")
def waiting(_: str) -> bool:
    return True


def many(items: Sequence[str]) -> int:
    messages = [nothing.send(item) for item in items]
    return sum(message.get_result(block=True, timeout=300_000) for message in messages)


def one(item: str) -> object:
    return nothing.send(item).get_result(block=True, timeout=60_000)


def main() -> None:
    asked = measuring.options()
    with measuring.redis_server(asked.folder, durable=asked.variant == "durable") as port:
        os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{port}/0"
        import dramatiq_redis  # this module again, with the right address

        worker = ["dramatiq_redis", "--processes", "2", "--threads", "1", "--queues", "default"]
        with measuring.running(
            [sys.executable, "-m", "dramatiq", *worker], cwd=Path(__file__).parent
        ):
            dramatiq_redis.one("warm")
            found = measuring.measure(
                asked,
                many=dramatiq_redis.many,
                one=dramatiq_redis.one,
                submit=dramatiq_redis.waiting.send,
                versions=("dramatiq", "redis"),
            )
    measuring.report(found)


if __name__ == "__main__":
    main()
