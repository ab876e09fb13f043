"""Functions and classes of the program itself, which no worker can import, are found inside a job
as at home: by pools of processes, and by whoever pickles them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from tests.live import LiveController

PROGRAM = """
import concurrent.futures, dataclasses, functools, multiprocessing, pickle, sys
import corral

FACTOR = 3

@dataclasses.dataclass
class Batch:
    n: int

class Net:
    layers = 2

def scaled(x):
    return x * FACTOR

def batch(x):
    return Batch(scaled(x))

def pooled(way, n):
    with multiprocessing.get_context(way).Pool(2) as pool:
        found = pool.map(batch, range(n))
        assert all(isinstance(one, Batch) for one in found)
        return pool.map(scaled, range(n)), found, pool.map(functools.partial(max, 1), range(n))

def futures(n):
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        return list(pool.map(batch, range(n)))

def feed(queue, n):
    for number in range(n):
        queue.put(Batch(number))

def queued(way, n):
    context = multiprocessing.get_context(way)
    queue = context.Queue()
    context.Process(target=feed, args=(queue, n)).start()
    return [queue.get(timeout=60) for _ in range(n)]

def pickles(given):
    assert pickle.loads(pickle.dumps(given)) == given
    return pickle.loads(pickle.dumps(Net())).layers, pickle.loads(pickle.dumps(scaled))(2)

def program(way):
    return (
        client.run(pooled, (way, 3)),
        client.run(queued, (way, 2)),
        client.run(pickles, (Batch(4),)),
    )

BATCHES = [Batch(0), Batch(3), Batch(6)]
"""
ASKED = """
if __name__ == "__main__":
    with corral.Client() as client:
        expected = ([0, 3, 6], BATCHES, [1, 1, 2]), [Batch(0), Batch(1)], (2, 6)
        assert program(sys.argv[1]) == expected
        assert client.run(futures, (3,)) == BATCHES
    print("done")
"""
TYPED = """
import code, sys
console = code.InteractiveInterpreter({{"__name__": "__main__"}})
sys.modules["__main__"].__dict__.update(console.locals)
console.locals = sys.modules["__main__"].__dict__
console.runcode({program!r})
console.runcode("client = corral.Client()")
console.runcode("print(program('spawn')[0][1] == BATCHES)")
"""

Run = Callable[..., str]


@pytest.fixture
def run(controller: LiveController, tmp_path: Path) -> Run:
    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=controller.environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_of_a_program(run: Run, tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + ASKED)
    assert run("program.py", way) == "done\n"


def test_of_a_module_that_is_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pond").mkdir()
    (tmp_path / "pond" / "__init__.py").touch()
    (tmp_path / "pond" / "ducks.py").write_text(PROGRAM + ASKED)
    assert run("-m", "pond.ducks", "spawn") == "done\n"


def test_of_a_console(run: Run) -> None:
    assert run("-c", TYPED.format(program=PROGRAM)).strip() == "True"


def main_file() -> str | None:
    import sys

    return getattr(sys.modules["__main__"], "__file__", None)


def test_who_has_none_finds_the_runners(controller: LiveController, run: Run) -> None:
    """A warm process has it back for functions that are nobody's program."""
    with corral.Client(controller.address, controller.token) as client:
        before = client.run(main_file)
        assert before is not None
        assert before.endswith("runner.py")
        assert client.run(main_file) == before
