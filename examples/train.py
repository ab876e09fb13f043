"""A script as a job, with progress, metrics, checkpoints and an artifact.

corral run examples/train.py --epochs 5
"""

import argparse
import json
import random
from pathlib import Path

from corral import job


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--fail-at", type=int, help="fail in this epoch of the first attempt")
    chosen = arguments.parse_args()

    state = job.restore() or {"epoch": 0, "slope": 0.0}
    if state["epoch"]:
        print(f"going on after epoch {state['epoch']}")
    points = [(x / 100, 3 * x / 100) for x in range(100)]
    while state["epoch"] < chosen.epochs and not job.cancelled():
        if job.attempt() == 1 and state["epoch"] + 1 == chosen.fail_at:
            raise RuntimeError("the power went out")
        random.Random(state["epoch"]).shuffle(points)
        for x, y in points:
            state["slope"] += 0.1 * (y - state["slope"] * x) * x
        loss = sum((y - state["slope"] * x) ** 2 for x, y in points) / len(points)
        state["epoch"] += 1
        print(f"epoch {state['epoch']}: slope {state['slope']:.4f}, loss {loss:.6f}")
        job.progress(state["epoch"] / chosen.epochs, f"epoch {state['epoch']}")
        job.metric(loss=loss, step=state["epoch"])
        job.checkpoint(state)

    # Files in the output folder become artifacts by themselves; job.artifact stores any other.
    (job.output_dir() / "model.json").write_text(json.dumps(state))
    Path("notes.txt").write_text(f"the slope is {state['slope']:.2f}\n")
    job.artifact("notes.txt")


if __name__ == "__main__":
    main()
