"""`make bench`: Corral and its peers in one run on one machine, interleaved, medians of the rounds.

Exits with 1 where a bar is missed. A peer that cannot be had stands in the table with the reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import bars, ours, report
from bench.installing import CannotInstall, install
from bench.peers import PEERS, Peer

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".bench"
PROGRAMS = Path(__file__).parent / "peers"
PEER_S = 300.0
DATA = Path("/var/tmp")
"""Where queues and journals lie: a disk, which /tmp may not be, and fsync is what counts here."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="every peer, not only the usual ones")
    parser.add_argument("--only", default="", help="only systems whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one small round of Corral alone")
    parser.add_argument("--to", type=Path, help="folder for bench.json and bench.md")
    asked = parser.parse_args()
    rounds = 1 if asked.quick else asked.rounds
    KEPT.mkdir(exist_ok=True)
    peers, refused = ([], {}) if asked.quick else _peers(asked.all, asked.only)
    sizes = ours.Sizes(quick=asked.quick)
    measured: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        floors = {"fsync_per_s": _fsyncs(), "additions_per_s": _additions()}
        one: dict[str, Any] = {"round": number, **floors, "systems": {}}
        if asked.only.lower() in bars.CORRAL.lower():
            one["systems"][bars.CORRAL] = _timed(
                number, bars.CORRAL, lambda folder: ours.measure(folder, sizes)
            )
        for peer in peers:
            try:
                one["systems"][peer.name] = _timed(
                    number, peer.name, lambda folder, peer=peer: _peer(peer, folder)
                )
            except PeerFailed as error:
                refused[peer.name] = str(error)
                print(f"  {peer.name}: {error}", flush=True)
        measured.append(one)
    document = _document(measured, refused)
    print(report.terminal(document))
    if asked.to or not (asked.quick or asked.only):
        report.write(document, asked.to or ROOT / "docs" / "measurements")
    missed = [bar["figure"] for bar in document["bars"] if bar["met"] is False]
    return 1 if missed and not asked.quick else 0


class PeerFailed(Exception):
    """What the table says instead of figures."""


def _peers(everyone: bool, only: str) -> tuple[list[Peer], dict[str, str]]:
    """Those that could be installed, and why the others could not."""
    ready: list[Peer] = []
    refused: dict[str, str] = {}
    for peer in PEERS:
        if not (everyone or peer.always) or only.lower() not in peer.name.lower():
            continue
        try:
            install(peer, KEPT / peer.environment)
            ready.append(peer)
        except CannotInstall as error:
            refused[peer.name] = str(error)
            print(f"{peer.name}: {error}", file=sys.stderr, flush=True)
    return ready, refused


def _timed(number: int, name: str, measure: Any) -> dict[str, Any]:
    """One system in one round, in a folder of its own that is gone afterwards."""
    load = os.getloadavg()[0]
    begun = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-", dir=DATA))
    try:
        found: dict[str, Any] = measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found |= {"load_before": load, "took_s": time.perf_counter() - begun}
    rate, p50 = found["end_to_end_per_s"], found["latency_p50_ms"]
    print(
        f"round {number}: {name}: {bars.told(rate)} jobs/s end to end, latency p50 "
        f"{bars.told(p50)} ms, submit {bars.told(found['submit_one_by_one_per_s'])}/s "
        f"(load {load:.1f}, {found['took_s']:.0f} s)",
        flush=True,
    )
    return found


def _peer(peer: Peer, folder: Path) -> dict[str, Any]:
    sizes = {"--jobs": peer.jobs, "--latencies": peer.latencies, "--submits": peer.submits}
    command = [KEPT / peer.environment / "bin" / "python", PROGRAMS / f"{peer.program}.py"]
    given = [word for key, value in sizes.items() for word in (key, str(value))]
    log = folder / "log"
    try:
        with log.open("wb") as said:
            ran = subprocess.run(
                [*command, "--folder", folder, "--variant", peer.variant, *given],
                stdout=subprocess.PIPE,
                stderr=said,
                timeout=PEER_S,
                check=True,
            )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"not done after {PEER_S:g} s") from None
    except subprocess.CalledProcessError as error:
        last = log.read_text(errors="replace").strip().splitlines() or [""]
        raise PeerFailed(f"ended with {error.returncode}: {last[-1][:200]}") from None
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return {**found, "jobs": peer.jobs}


def _fsyncs(count: int = 300) -> float:
    """The floor under every durable figure: 1 kB appended and synced, one by one."""
    with tempfile.TemporaryFile(dir=DATA) as file:
        begun = time.perf_counter()
        for _ in range(count):
            file.write(b"x" * 1024)
            file.flush()
            os.fsync(file.fileno())
        return count / (time.perf_counter() - begun)


def _additions(count: int = 5_000_000) -> float:
    """How fast Python itself is in this moment: other guests of the same host come and go."""
    begun, total = time.perf_counter(), 0
    for number in range(count):
        total += number
    return count / (time.perf_counter() - begun)


def _document(measured: list[dict[str, Any]], refused: dict[str, str]) -> dict[str, Any]:
    systems = list(dict.fromkeys(name for one in measured for name in one["systems"]))
    medians = {
        name: _medians([one["systems"][name] for one in measured if name in one["systems"]])
        for name in systems
    }
    versions: dict[str, str] = {"corral": importlib.metadata.version("corral")}
    for one in measured:
        for found in one["systems"].values():
            versions |= found.pop("versions", {})
    return {
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "machine": machine(),
        "versions": versions,
        "medians": medians,
        "bars": [
            {"figure": one.name, "value": one.value, "unit": one.unit, "bar": one.bar,
             "met": one.met}
            for one in bars.judge(medians)
        ],
        "refused": refused,
        "notes": {peer.name: peer.note for peer in PEERS if peer.name in {*systems, *refused}},
        "durable": {bars.CORRAL: True, **{peer.name: peer.durable for peer in PEERS}},
        "rounds": measured,
    }  # fmt: skip


def _medians(rounds: list[dict[str, Any]]) -> dict[str, float]:
    numbers = {key for key, value in rounds[0].items() if isinstance(value, int | float)}
    return {
        key: statistics.median(one[key] for one in rounds) for key in rounds[0] if key in numbers
    }


def machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
