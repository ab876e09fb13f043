"""`make bench-faults`: how soon work goes on when a worker or a job's process is lost, the gap
between two jobs on a busy slot, and what many idle workers cost.

Two machines join a controller, each with homes and processes of their own. Times are from the
fault to the first line of user code in the next attempt, on the other machine. Exits with 1 where
a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.bars import MARKS, Figure, judged, line, told
from bench.controllers import Controller
from bench.machines import Machine, until
from bench.report import rounded, table
from bench.run import DATA, ROOT, machine
from corral.sdk import figures
from corral.sdk.client import Client
from corral.sdk.handles import Handle

ELSEWHERE_S = 3.0
REVOKED_S = 5.0


class Sizes:
    def __init__(self, *, quick: bool) -> None:
        self.grace_s = 2.0 if quick else 30.0
        self.heartbeat_s = 0.5 if quick else 5.0
        self.rounds = 1 if quick else 3
        self.lost_rounds = 1 if quick else 2
        self.jobs = 50 if quick else 500
        self.idle_agents = 10 if quick else 200
        self.idle_s = 2.0 if quick else 60.0


def hang() -> float:
    """Stays for ever the first time; afterwards says when it began."""
    import os
    import time

    began = time.time()
    if os.environ["CORRAL_ATTEMPT"] == "1":
        print(os.getpid(), flush=True)
        time.sleep(3600)
    return began


def tick(seconds: float) -> tuple[float, float]:
    import time

    began = time.monotonic()
    if seconds:
        time.sleep(seconds)
    return began, time.monotonic()


class Cluster:
    """A controller without a worker of its own, and two machines: the job is on `one`, and `two`
    waits for it."""

    def __init__(self, client: Client, one: Machine, two: Machine) -> None:
        self.client, self.one, self.two = client, one, two
        one.join(client)
        two.join(client)

    def hanging(self) -> tuple[Handle, int]:
        """A job that runs on `one`, and its process; it may go nowhere but to `two`."""
        change = self.client.admin.change_worker
        for name in ("one", "two"):
            self.client.run(abs, (-1,), worker=name, output=None)  # warm, and proven to work
        change("two", draining=True)
        handle = self.client.submit(hang)
        pid = int(next(iter(handle.logs())))
        change("two", draining=False)
        return handle, pid

    def again_after(self, fault: Callable[[int], None]) -> float:
        handle, pid = self.hanging()
        at = time.time()
        fault(pid)
        took: float = handle.result(120) - at
        assert handle.status().worker == "two", "it went elsewhere"
        return took


@contextlib.contextmanager
def cluster(folder: Path, sizes: Sizes) -> Iterator[Cluster]:
    settings = {
        "tls": "always",
        "advertise": "127.0.0.1",
        "grace_s": sizes.grace_s,
        "heartbeat_s": sizes.heartbeat_s,
        "worker": {"enabled": False},
    }
    yaml = "shutdown_grace_s: 0\nworker: {cpus: 1}\n"
    with Controller(folder / "controller", settings) as controller:
        machines = [Machine(folder, name, yaml) for name in ("one", "two")]
        try:
            with Client(home=controller.door) as client:
                yield Cluster(client, *machines)
        finally:
            for one in machines:
                one.power_off()


def faults(folder: Path, sizes: Sizes) -> dict[str, Any]:
    found: dict[str, list[float]] = {}

    def measured(key: str, seconds: float) -> None:
        found.setdefault(key, []).append(seconds)

    with cluster(folder, sizes) as both:
        change, one = both.client.admin.change_worker, both.one

        def kill_process(pid: int) -> None:
            change("one", draining=True)  # so that its next attempt is on the other machine
            os.kill(pid, signal.SIGKILL)

        for _ in range(sizes.rounds):
            measured("process_killed_s", both.again_after(kill_process))
            change("one", draining=False)
        for _ in range(sizes.rounds):
            measured(
                "goodbye_s", both.again_after(lambda pid: one.agent.send_signal(signal.SIGTERM))
            )
            one.ended()
            one.join(both.client)
        for _ in range(sizes.lost_rounds):
            took = both.again_after(lambda pid: one.agent.kill())
            measured("killed_beyond_grace_s", took - sizes.grace_s)
            one.ended()
            one.join(both.client)
        for _ in range(sizes.lost_rounds):
            took = both.again_after(lambda pid: one.agent.suspend())
            measured("silent_beyond_grace_s", took - sizes.grace_s)
            one.agent.resume()
            until(lambda: any(w.name == "one" and w.connected for w in both.client.workers()))
        handle, _ = both.hanging()
        at = time.time()
        both.client.admin.revoke_worker("one")
        one.ended()
        measured("revoked_out_s", time.time() - at)
        measured("revoked_again_s", handle.result(60) - at)
    longest: dict[str, Any] = {key: max(rounds) for key, rounds in found.items()}
    return {**longest, "rounds": found}


def gaps(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """One slot that always has a next job."""
    found: dict[str, Any] = {}
    with (
        Controller(folder / "controller", {"worker": {"cpus": 1}}) as controller,
        Client(home=controller.door) as client,
    ):
        figures.warm_up(client)
        for name, seconds in (("gap", 0.02), ("gap_of_nothing", 0.0)):
            times = sorted(client.map(tick, [seconds] * sizes.jobs))
            between = [(after[0] - before[1]) * 1000 for before, after in pairwise(times)]
            found[f"{name}_p50_ms"] = statistics.median(between)
            found[f"{name}_p95_ms"] = figures.quantile(between, 0.95)
    return found


def idle(folder: Path, sizes: Sizes) -> dict[str, Any]:
    settings = {"tls": "always", "advertise": "127.0.0.1", "worker": {"enabled": False}}
    with (
        Controller(folder / "controller", settings) as controller,
        Client(home=controller.door) as client,
    ):
        agents = subprocess.Popen(
            [sys.executable, "-m", "bench.idle_agents", str(sizes.idle_agents)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert agents.stdin
        assert agents.stdout
        agents.stdin.write(f"{client.admin.invite_worker()}\n")
        agents.stdin.flush()
        assert agents.stdout.readline() == "ready\n"
        time.sleep(sizes.idle_s / 12)
        begun, before = time.perf_counter(), controller.cpu_s()
        time.sleep(sizes.idle_s)
        cpu = (controller.cpu_s() - before) / (time.perf_counter() - begun)
        there = sum(one.connected for one in client.workers())
        assert there == sizes.idle_agents, f"{there} of them are still there"
        peak = controller.peak_mb()
        agents.stdin.close()
        agents.wait(60)
    return {"idle_agents": there, "idle_cpu_percent": 100 * cpu, "idle_peak_mb": peak}


PARTS = {"faults": faults, "gaps": gaps, "idle workers": idle}
BARS = (
    Figure("process_killed_s", "job process killed → elsewhere", "s", at_most=ELSEWHERE_S),
    Figure("goodbye_s", "agent told to stop → elsewhere", "s", at_most=ELSEWHERE_S),
    Figure("killed_beyond_grace_s", "agent killed → elsewhere, beyond grace", "s", at_most=3.0),
    Figure("silent_beyond_grace_s", "agent silent → elsewhere, beyond grace", "s", at_most=3.0),
    Figure("revoked_out_s", "worker revoked → its agent gone", "s", at_most=REVOKED_S),
    Figure("revoked_again_s", "worker revoked → its job elsewhere", "s"),
    Figure("gap_p50_ms", "gap between jobs of 20 ms, p50", "ms", at_most=2.0),
    Figure("gap_p95_ms", "gap between jobs of 20 ms, p95", "ms"),
    Figure("gap_of_nothing_p50_ms", "gap between jobs that do nothing, p50", "ms", at_most=2.0),
    Figure("gap_of_nothing_p95_ms", "gap between jobs that do nothing, p95", "ms"),
    Figure("idle_agents", "idle workers connected"),
    Figure("idle_cpu_percent", "  of one core the controller used", "%", at_most=5.0),
    Figure("idle_peak_mb", "  its memory, peak", "MB", at_most=300.0),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-faults")
    parser.add_argument("--only", default="", help="only parts whose name contains this")
    parser.add_argument("--quick", action="store_true", help="small; proves that it runs")
    parser.add_argument("--to", type=Path, help="folder for faults.json and faults.md")
    asked = parser.parse_args()
    sizes = Sizes(quick=asked.quick)
    load, found = os.getloadavg()[0], dict[str, Any]()
    for name, part in PARTS.items():
        if asked.only not in name:
            continue
        folder = Path(tempfile.mkdtemp(prefix="corral-faults-", dir=DATA))
        try:
            measured = part(folder, sizes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found |= measured
        for figure in BARS:
            if figure.key in measured:
                print(line(judged(figure, found[figure.key], {})), flush=True)
    bars = [judged(figure, found[figure.key], {}) for figure in BARS if figure.key in found]
    missed = any(bar.met is False for bar in bars)
    to = asked.to or (None if asked.quick or asked.only else ROOT / "docs" / "measurements")
    if to:
        _write(to, found, sizes, load, met=not missed)
    return 1 if missed and not asked.quick else 0


def _write(to: Path, found: dict[str, Any], sizes: Sizes, load: float, *, met: bool) -> None:
    about = machine()
    bars = [judged(figure, found[figure.key], {}) for figure in BARS if figure.key in found]
    rows = [
        [bar.name.strip(), f"{told(bar.value)} {bar.unit}".strip(), bar.bar, MARKS[bar.met]]
        for bar in bars
    ]
    text = [
        "# Faults, gaps and idle workers",
        "",
        f"Written by `make bench-faults`; the longest of {sizes.rounds} rounds, of "
        f"{sizes.lost_rounds} where the grace of {sizes.grace_s:g} s is waited for. Two machines "
        "are two homes on one; elsewhere is the first line of user code on the other.",
        "",
        f"- Machine: {about['cpu']}, {about['cores']} cores, {about['system']}, Python "
        f"{about['python']}; load average before: {load:.1f}",
        "",
        *table(["figure", "Corral", "bar", ""], rows),
        "",
    ]
    to.mkdir(parents=True, exist_ok=True)
    (to / "faults.md").write_text("\n".join(text))
    document = {"machine": about, "load_before": load, "figures": rounded(found), "bars_met": met}
    (to / "faults.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
