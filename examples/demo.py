"""What `make demo` runs: an embedded controller in a temporary home, and the main things it does.

Exits 0 when everything came out as expected, and says what did not otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import corral
from corral.sdk.images import contact_sheet

CORRAL = Path(sys.executable).with_name("corral")
HERE = Path(__file__).resolve().parent
MAPPED = 200
RENDERED = 24
SHOWN = HERE.parent / ".demo"
"""Where the images stay, for whoever wants to look at them."""


class Outcome(NamedTuple):
    what: str
    value: str
    good: bool
    seconds: float


# --- the work ----------------------------------------------------------------------------------


def greet(name: str) -> str:
    return f"hello, {name}"


def steps_to_one(number: int) -> int:
    """How long the Collatz sequence of a number is."""
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


def stumble() -> str:
    """Fails on its first attempt, goes on from its checkpoint on the second."""
    from corral import job

    if job.attempt() == 1:
        job.checkpoint("half of the way")
        job.progress(0.5, "about to stumble")
        raise RuntimeError("stumbled, on purpose")
    job.progress(1.0, "got up")
    return f"attempt {job.attempt()} went on from: {job.restore()}"


# --- showing it --------------------------------------------------------------------------------


def function(client: corral.Client, bars: Progress) -> tuple[str, bool]:
    bar = bars.add_task("a function", total=1)
    value = client.run(greet, args=("world",))
    bars.advance(bar)
    return value, value == greet("world")


def mapped(client: corral.Client, bars: Progress) -> tuple[str, bool]:
    bar = bars.add_task(f"a map of {MAPPED}", total=MAPPED)
    values = []
    for value in client.map(steps_to_one, range(1, MAPPED + 1)):
        values.append(value)
        bars.advance(bar)
    longest = max(range(MAPPED), key=values.__getitem__) + 1
    good = values == [steps_to_one(number) for number in range(1, MAPPED + 1)]
    return f"{len(values)} results in order; {longest} takes {max(values)} steps", good


def script(client: corral.Client, bars: Progress) -> tuple[str, bool]:
    handle = client.submit_script(
        HERE / "cow.py", ["round", "up", "your", "GPUs"], requirements=["cowsay==6.1"]
    )
    follow(handle, bars, "a script with a requirement")
    said = "".join(handle.logs())
    bars.console.print(said.rstrip(), highlight=False, markup=False)
    state = handle.status().state
    return f"{state}, with cowsay installed for it", state == "succeeded" and "GPUs" in said


def retried(client: corral.Client, bars: Progress) -> tuple[str, bool]:
    handle = client.submit(stumble, retries=1)
    follow(handle, bars, "a job that fails once")
    value, status = handle.result(timeout=60), handle.status()
    return value, status.attempt == 2 and "half of the way" in value


def follow(handle: Any, bars: Progress, title: str) -> None:
    """Draws a job's own progress, from the stream of what happens to it."""
    bar = bars.add_task(title, total=1.0)
    for event in handle.events():
        fraction = getattr(event, "fraction", None)
        if fraction is not None:
            bars.update(bar, completed=fraction)
        if getattr(event, "code", ""):
            bars.console.print(f"[dim]{title}: {event.message}; it is tried again.[/dim]")
    bars.update(bar, completed=1.0)


def images(client: corral.Client, bars: Progress) -> tuple[str, bool]:
    batch = client.batch(HERE / "castles.yaml")
    bar = bars.add_task(f"a batch of {batch.count} images", total=batch.count)
    pixels = set()
    for _, result in batch.results():
        if isinstance(result, dict):
            pixels.update(image["pixel_sha256"] for image in result["images"])
        bars.advance(bar)
    shutil.rmtree(SHOWN, ignore_errors=True)
    entries = [
        contact_sheet.SheetEntry(path, one.job_id, one.worker, contact_sheet.read_card(path))
        for one, path in batch.download(SHOWN)
        if path.suffix == ".png"
    ]
    sheet = contact_sheet.write(SHOWN, batch.id, entries)
    good = len(entries) == len(pixels) == batch.count == RENDERED
    return f"{len(entries)} images; see {sheet.relative_to(HERE.parent)}", good


STEPS: tuple[Callable[[corral.Client, Progress], tuple[str, bool]], ...] = (
    function,
    mapped,
    script,
    retried,
    images,
)


def show(console: Console) -> list[Outcome]:
    outcomes = []
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with corral.Client() as client, Progress(*columns, console=console) as bars:
        for step in STEPS:
            began = time.monotonic()
            try:
                value, good = step(client, bars)
            except corral.CorralError as error:
                value, good = str(error), False
            title = bars.tasks[-1].description if bars.tasks else step.__name__
            outcomes.append(Outcome(title, value, good, time.monotonic() - began))
    return outcomes


def summary(outcomes: list[Outcome], started_s: float) -> Table:
    table = Table(title="Corral, on this machine")
    for column in ("what", "came out as", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    table.add_row("corral up", "a controller and a worker", f"{started_s:.2f}")
    for outcome in outcomes:
        mark = "" if outcome.good else "[red]not as expected:[/red] "
        table.add_row(outcome.what, mark + outcome.value, f"{outcome.seconds:.2f}")
    return table


def command(*words: str) -> None:
    subprocess.run([CORRAL, *words], check=True, timeout=60)


def main() -> int:
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    for name in [name for name in os.environ if name.startswith("CORRAL_")]:
        del os.environ[name]  # the demo is about its own controller, whatever else is set up
    os.environ["CORRAL_HOME"] = str(home)
    began = time.monotonic()
    try:
        command("up", "--detach", "--port", "0", "--grpc-port", "0")
        started_s = time.monotonic() - began
        try:
            outcomes = show(console)
        finally:
            command("down")
    except (subprocess.SubprocessError, OSError) as error:
        console.print(f"The demo did not come to its end: {error}")
        console.print(f"What happened is in {home / 'log'}.", soft_wrap=True)
        return 1
    console.print(summary(outcomes, started_s))
    if not all(outcome.good for outcome in outcomes):
        console.print(f"Not everything was as expected; see {home / 'log'}.", soft_wrap=True)
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
