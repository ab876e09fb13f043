"""How long a killed controller with many queued jobs needs until it works again.

Fills a home with jobs (1 kB argument each), ends controller and agent with SIGKILL, starts them
again, and measures from exec to `/health` 200 and to the first placement. Beside it, in the same
run, a peer that keeps its queue in SQLite with fsync too: Huey, from exec of its consumer to its
first task. Huey reads nothing at its start; Corral proves every record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import cloudpickle
import grpc
import psutil

from corral.contract import corral_pb2 as pb
from corral.contract import service

BIN = Path(sys.executable).parent
BAR_S = 5.0

PEER = """
import os, sys, threading
from huey import SqliteHuey
huey = SqliteHuey(filename=sys.argv[1], fsync=True)
@huey.task()
def work(payload):
    print("first", flush=True)
    os._exit(0)
if sys.argv[2] == "fill":
    huey.storage.conn.execute("begin")
    for n in range(int(sys.argv[3])):
        data = huey.serialize_task(work.s("x" * 1024))
        huey.storage.conn.execute(
            "insert into task (queue, data, priority) values (?, ?, 0)", (huey.storage.name, data)
        )
    huey.storage.conn.execute("commit")
else:
    huey.create_consumer(workers=1).run()
"""


def environ(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    return {**kept, "CORRAL_HOME": str(home), "CORRAL_LOG_LEVEL": "error"}


def start(home: Path) -> tuple[psutil.Popen, float]:
    (home / "controller.json").unlink(missing_ok=True)
    command = [str(BIN / "corral"), "up", "--port", "0", "--grpc-port", "0"]
    begun = time.perf_counter()
    return psutil.Popen(command, env=environ(home), stderr=subprocess.DEVNULL), begun


def until_healthy(home: Path) -> dict[str, str]:
    while True:
        try:
            card: dict[str, str] = json.loads((home / "controller.json").read_text())
            with urllib.request.urlopen(f"{card['http']}/health", timeout=5) as answer:
                if answer.status == 200:
                    return card
        except (OSError, ValueError, urllib.error.URLError):
            time.sleep(0.005)


def until_placed(home: Path, after: int) -> None:
    """Until the journal, read from outside, has a placement behind this record."""
    connection = sqlite3.connect(f"file:{home / 'journal' / 'corral.db'}?mode=ro", uri=True)
    query = "SELECT 1 FROM journal WHERE seq > ? AND kind = 'AttemptPlaced' LIMIT 1"
    while connection.execute(query, (after,)).fetchone() is None:
        time.sleep(0.005)
    connection.close()


def last_seq(home: Path) -> int:
    connection = sqlite3.connect(home / "journal" / "corral.db")
    seq = int(connection.execute("SELECT max(seq) FROM journal").fetchone()[0])
    connection.close()
    return seq


def power_off(process: psutil.Popen) -> None:
    everything = [process, *process.children(recursive=True)]
    for one in everything:
        one.kill()
    process.wait()
    psutil.wait_procs(everything[1:], timeout=10)


async def fill(card: dict[str, str], token: str, count: int) -> float:
    function = pb.BlobRef(data=cloudpickle.dumps(len))
    begun = time.perf_counter()
    async with grpc.aio.insecure_channel(card["grpc"], service.CHANNEL_OPTIONS) as channel:
        submit = service.stub(channel).SubmitJobs
        for first in range(0, count, 1000):
            jobs = []
            for n in range(first, min(first + 1000, count)):
                arguments = cloudpickle.dumps(((f"{n:<1024}",), {}))
                call = pb.FunctionCall(function=function, arguments=pb.BlobRef(data=arguments))
                jobs.append(pb.JobSubmission(function=call))
            metadata = (("authorization", f"Bearer {token}"),)
            await submit(pb.SubmitJobsRequest(jobs=jobs), metadata=metadata)
    return time.perf_counter() - begun


def corral_round(home: Path) -> dict[str, float]:
    before = last_seq(home)
    process, begun = start(home)
    until_healthy(home)
    healthy_s = time.perf_counter() - begun
    until_placed(home, before)
    placed_s = time.perf_counter() - begun
    rss_mb = process.memory_info().rss / 1e6
    power_off(process)
    return {"healthy_s": healthy_s, "placed_s": placed_s, "rss_mb": rss_mb}


def peer_round(program: Path, queue: Path) -> float:
    begun = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, program, queue, "run"], check=True, capture_output=True, timeout=120
    )
    assert ran.stdout == b"first\n", ran
    return time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "huey>=2.5"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        home, program, queue = Path(folder, "home"), Path(folder, "peer.py"), Path(folder, "q.db")
        home.mkdir()
        # One CPU and no room ahead: all but one job stay queued.
        (home / "corral.yaml").write_text("worker: {enabled: false}\n")
        process, _ = start(home)
        card = until_healthy(home)
        seconds = asyncio.run(fill(card, (home / "token").read_text().strip(), options.jobs))
        power_off(process)
        (home / "corral.yaml").write_text("worker: {cpus: 1}\n")
        rate = options.jobs / seconds
        print(f"{options.jobs:,} jobs accepted in {seconds:.1f} s ({rate:,.0f}/s)")
        program.write_text(PEER)
        subprocess.run([sys.executable, program, queue, "fill", str(options.jobs)], check=True)
        rounds, peers = [], []
        for number in range(options.rounds):
            rounds.append(corral_round(home))
            peers.append(peer_round(program, queue))
            told = ", ".join(f"{key} {value:.2f}" for key, value in rounds[-1].items())
            print(f"round {number + 1}: {told}; Huey to its first task {peers[-1]:.2f} s")
    figures = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    figures["huey_first_task_s"] = statistics.median(peers)
    figures |= {"jobs": options.jobs, "cpus": os.cpu_count() or 0, "load": os.getloadavg()[0]}
    print(
        f"median: /health after {figures['healthy_s']:.2f} s, first placement after "
        f"{figures['placed_s']:.2f} s (bar {BAR_S:g} s), {figures['rss_mb']:.0f} MB; "
        f"Huey {figures['huey_first_task_s']:.2f} s"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if figures["placed_s"] <= BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
