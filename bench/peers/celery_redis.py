"""Celery on Redis: the task, its worker's settings, and the measuring client."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import measuring
from celery import Celery
from celery.result import ResultSet

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379/0")
app = Celery("celery_redis", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
if os.environ.get("BENCH_VARIANT") == "durable":
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 64


@app.task(name="nothing")
def nothing(_: str) -> None:
    return None


def many(items: Sequence[str]) -> int:
    results = ResultSet([nothing.apply_async((item,)) for item in items])
    return len(results.join_native(timeout=300))


def one(item: str) -> object:
    return nothing.delay(item).get(timeout=60)


def submit(item: str) -> object:
    return nothing.apply_async((item,), queue="waiting")  # nobody listens there


def main() -> None:
    asked = measuring.options()
    os.environ["BENCH_VARIANT"] = asked.variant
    with measuring.redis_server(asked.folder, durable=asked.variant == "durable") as port:
        os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{port}/0"
        import celery_redis  # this module again, with the settings of the variant

        worker = ["-A", "celery_redis", "worker", "--concurrency", "2", "--loglevel", "WARNING"]
        with measuring.running(
            [sys.executable, "-m", "celery", *worker], cwd=Path(__file__).parent
        ):
            celery_redis.one("warm")
            found = measuring.measure(
                asked,
                many=celery_redis.many,
                one=celery_redis.one,
                submit=celery_redis.submit,
                versions=("celery", "redis"),
            )
    measuring.report(found)


if __name__ == "__main__":
    main()
