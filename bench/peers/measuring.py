"""What every peer's program shares: its arguments, the measuring itself, and the line it prints.

Needs nothing but the standard library: it is imported inside the peers' own environments.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="for the peer's data")
    parser.add_argument("--variant", default="")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--latencies", type=int, required=True)
    parser.add_argument("--submits", type=int, required=True)
    return parser.parse_args()


def argument(number: int) -> str:
    return f"{number:<1024}"


def measure(
    asked: argparse.Namespace,
    *,
    many: Callable[[Sequence[str]], int],
    one: Callable[[str], object],
    submit: Callable[[str], object],
    versions: Sequence[str],
    warm: int = 200,
) -> dict[str, Any]:
    """`many` runs all and answers with how many results came back, `one` waits for its result,
    `submit` hands over a job that has to wait."""
    many([argument(number) for number in range(warm)])
    items = [argument(number) for number in range(asked.jobs)]
    begun = time.perf_counter()
    found = many(items)
    rate = asked.jobs / (time.perf_counter() - begun)
    assert found == asked.jobs, f"{asked.jobs - found} results are missing"
    for number in range(20):
        one(argument(number))
    waits = []
    for number in range(asked.latencies):
        begun = time.perf_counter()
        one(argument(number))
        waits.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    for number in range(asked.submits):
        submit(argument(number))
    submits = asked.submits / (time.perf_counter() - begun)
    return {
        "end_to_end_per_s": rate,
        "latency_p50_ms": quantile(waits, 0.5) * 1000,
        "latency_p99_ms": quantile(waits, 0.99) * 1000,
        "submit_one_by_one_per_s": submits,
        "versions": {name: importlib.metadata.version(name) for name in versions},
    }


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def report(figures: dict[str, Any]) -> None:
    print(json.dumps(figures), flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str | Path], **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server or worker of the peer; what it says goes to this program's stderr."""
    process = subprocess.Popen(
        [str(word) for word in command], stdout=sys.stderr, stderr=sys.stderr, **more
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(answered: Callable[[], bool], what: str, patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not answered():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not start within {patience_s:g} s")
        time.sleep(0.02)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def redis_server(folder: Path, *, durable: bool) -> Iterator[int]:
    """A Redis of its own; durable means that it answers after its fsync."""
    port = free_port()
    keeps = ("--appendonly", "yes", "--appendfsync", "always") if durable else ()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with running([*command, "--daemonize", "no", "--loglevel", "warning", *keeps]):
        until(lambda: listens(port), "redis-server")
        yield port
