"""Random clusters and queues for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import GPU, Capabilities, Withdrawn, Worker
from corral.scheduler.circuit import CLOSED, Circuit
from corral.scheduler.fit import Held
from corral.scheduler.plan import Line, Seat, Snapshot, Waiting

CIRCUITS = (CLOSED, CLOSED, Circuit({"j": 990.0}, 1, 999.0), Circuit({"j": 990.0}, 1, 1001.0))
"""Closed, half open, open."""
MODELS = ("flux", "sdxl", "llama")
CLASSES = ("", "", "high-memory", "low-latency", "cpu-only")


@st.composite
def workers(draw: st.DrawFn, number: int, policies: bool = False, models: bool = False) -> Worker:
    gpus = tuple(
        GPU(
            uuid=f"GPU-{number}-{n}",
            name=draw(st.sampled_from(["RTX 3090", "RTX 4090"])),
            vram_gb=draw(st.sampled_from([8.0, 12.0, 24.0])),
        )
        for n in range(draw(st.integers(0, 4)))
    )
    theirs = {gpu.uuid: draw(st.sampled_from([0.0, 0.0, 1.5, 5.0, 7.9])) for gpu in gpus}
    return Worker(
        id=f"w{number}",
        name=f"worker{number}",
        engine="simulated",
        capabilities=Capabilities(
            cpus=float(draw(st.integers(1, 8))),
            memory_gb=float(draw(st.sampled_from([4, 16, 64]))),
            gpus=gpus,
            labels=tuple(draw(st.sets(st.sampled_from(["fast", "site=home"])))),
            workloads=draw(st.sampled_from([("python",), ("python", "pipeline"), ("pipeline",)])),
            ahead=draw(st.sampled_from([0, 2, 64])),
            reserved_for=draw(st.sampled_from(["", "", "interactive"])) if policies else "",
            weight=draw(st.sampled_from([1.0, 1.0, 2.0])) if policies else 1.0,
            suits=draw(st.sampled_from(CLASSES)) if policies else "",
            models_present=draw(some_models()) if models else (),
            fetches_models=draw(st.booleans()) if models else False,
            task_types=draw(st.sampled_from([(), ("sketch",), ("webui", "render", "sketch")])),
        ),
        models_loaded=draw(some_models()) if models else (),
        local=number == 0,
        connected=draw(st.sampled_from([True, True, True, False])),
        draining=draw(st.sampled_from([False, False, False, True])),
        taken=tuple((uuid, gb) for uuid, gb in theirs.items() if gb),
        withdrawn=draw(
            st.sampled_from([Withdrawn(), Withdrawn(("render",)), Withdrawn((), MODELS[:1])])
        ),
    )


def some_models() -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(MODELS), max_size=2, unique=True).map(tuple)


@st.composite
def needs(draw: st.DrawFn, models: bool = False) -> Needs:
    kind = draw(st.sampled_from(["cpu", "whole", "share", "vram"]))
    return Needs(
        gpus={"whole": draw(st.integers(1, 3)), "vram": 1}.get(kind, 0),
        gpu_tenths=draw(st.integers(1, 10)) if kind == "share" else 0,
        vram_gb=draw(st.sampled_from([0.0, 10.0, 20.0])) if kind == "vram" else 0.0,
        gpu="" if kind == "cpu" else draw(st.sampled_from(["", "", "4090"])),
        cpus=draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])),
        memory_gb=draw(st.sampled_from([0.0, 2.0, 8.0])),
        labels=draw(st.sampled_from([(), ("fast",), ("site",), ("site=home",)])),
        worker=draw(st.sampled_from(["auto", "auto", "auto", "local", "worker1"])),
        models=draw(some_models()) if models else (),
        task=draw(st.sampled_from(["", "", "", "sketch", "render"])),
    )


@st.composite
def shapes(draw: st.DrawFn, models: bool = False) -> Shape:
    return Shape(
        needs=draw(needs(models)),
        queue_class=draw(st.sampled_from(list(QueueClass))),
        priority=draw(st.integers(-2, 2)),
        above_vram_gb=draw(st.sampled_from([0.0, 0.0, 12.0])),
        avoid=draw(st.sampled_from([(), (), ("w1",)])),
    )


@st.composite
def snapshots(
    draw: st.DrawFn, most: int = 5, policies: bool = False, models: bool = False
) -> Snapshot:
    count = draw(st.integers(0, most))
    seats = []
    for number in range(count):
        worker = draw(workers(number, policies, models))
        held = draw(st.lists(needs(models), max_size=6))
        began = draw(st.integers(0, 2))
        attempts = (Held(one, started=n < began) for n, one in enumerate(held))
        circuit = draw(st.sampled_from(CIRCUITS)) if policies else CLOSED
        seats.append(Seat(worker, tuple(attempts), circuit))
    now = 1000.0
    lines, seq = [], 0
    for shape in draw(st.lists(shapes(models), max_size=6, unique=True)):
        waiting = []
        for _ in range(draw(st.integers(1, 8))):
            seq += 1
            since = now - draw(st.sampled_from([0.0, 10.0, 30.0, 100.0]))
            waiting.append(Waiting(f"j{seq}", seq, since, draw(st.integers(0, 3))))
        typical_s = draw(st.sampled_from([0.0, 0.001, 5.0]))
        seen = draw(st.sets(st.integers(0, most))) if policies else ()
        paces = {f"w{n}": (draw(st.sampled_from([1.0, 5.0, 9.0])), 900.0 + n % 3) for n in seen}
        lines.append(Line(shape, tuple(waiting), typical_s, paces))
    return Snapshot(
        now=now,
        lines=tuple(lines),
        seats=tuple(seats),
        aging_s=60.0,
        last_aged_at=draw(st.sampled_from([0.0, 990.0])),
        keep_for_interactive=draw(st.integers(0, 2)) if policies else 0,
    )
