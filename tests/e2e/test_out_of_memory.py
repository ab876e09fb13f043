"""A worker that runs out of memory: the kernel kills the job, once, and its owner is told why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.core.errors import JobFailed
from tests.live import LiveController
from tests.memory_group import memory_group


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[corral.Client]:
    """Of a controller and a worker that have 600 MB together."""
    home = tmp_path_factory.mktemp("small") / "home"
    home.mkdir()
    with (
        memory_group(600) as prefix,
        LiveController(home, prefix=prefix),
        corral.Client(home=home) as made,
    ):
        yield made


def grow() -> None:
    held = []
    while True:
        held.append(b"x" * (10 << 20))


GROW = "held = []\nwhile True:\n    held.append(b'x' * (10 << 20))\n"


def told(handle: corral.Handle) -> str:
    with pytest.raises(JobFailed) as failed:
        handle.result(120)
    assert failed.value.failure.code == "out_of_memory"
    assert handle.status().attempt == 1, "it would end the same way five times"
    return str(failed.value.failure.message)


def test_a_function_and_what_comes_after_it(client: corral.Client) -> None:
    message = told(client.submit(grow))
    assert "The kernel ended the job's process because memory ran out: it held up to 0." in message
    assert "control group has 0.59 GB for all that runs" in message
    assert client.run(pow, (2, 10)) == 1024


def test_a_script(client: corral.Client, tmp_path: Path) -> None:
    path = tmp_path / "grow.py"
    path.write_text(GROW)
    assert "it held up to 0." in told(client.submit_script(path))


def test_a_retry_of_its_own_is_counted(client: corral.Client) -> None:
    handle = client.submit(grow, retries=1)
    with pytest.raises(JobFailed):
        handle.result(120)
    assert handle.status().attempt == 2


def test_a_kill_without_want_of_memory_is_none(client: corral.Client, tmp_path: Path) -> None:
    def once() -> int:
        import os

        if os.environ["CORRAL_ATTEMPT"] == "1":
            os.kill(os.getpid(), 9)
        return int(os.environ["CORRAL_ATTEMPT"])

    assert client.submit(once).result(60) == 2
