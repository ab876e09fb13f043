"""The plain way alone, and without each fast path: the same answers, whatever is switched off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.core.errors import InvalidSettings
from corral.protocol.parcels import SOCKET
from corral.sdk.transport.direct import NotDirect
from corral.settings import FAST_PATHS, fast_paths
from tests.crash.conftest import same_port
from tests.live import LiveController

RESULT_S = 60.0


@pytest.fixture(params=["all", *sorted(FAST_PATHS), ""], ids=lambda way: f"without-{way}")
def live(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveController]:
    monkeypatch.setenv("CORRAL_WITHOUT", request.param)  # the client's side of it
    environ = {
        "CORRAL_WITHOUT": request.param,
        "CORRAL_WORKER_WRITE_PATHS": f"[{tmp_path}]",
        "CORRAL_WORKER_CPUS": "3",
        "CORRAL_BACKOFF_S": "0",
    }
    with LiveController(tmp_path / "home", *same_port(), environ=environ) as made:
        yield made


def square(number: int) -> int:
    return number * number


def second_time() -> int:
    import corral.job

    if corral.job.attempt() == 1:
        raise ValueError("not the first time")
    return corral.job.attempt()


def gated(folder: str) -> int:
    import time
    from pathlib import Path

    import corral.job

    Path(folder, "begun").touch()
    while not Path(folder, "gate").exists():
        time.sleep(0.01)
    return corral.job.attempt()


def until_begun(folder: Path) -> None:
    deadline = time.monotonic() + RESULT_S
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (folder / "begun").unlink()


def test_what_jobs_do_is_the_same(live: LiveController, tmp_path: Path) -> None:
    on = fast_paths()
    with corral.Client(home=live.home) as client:
        assert client.run(square, (5,)) == 25
        assert client.submit(square, (6,)).result(timeout=RESULT_S) == 36
        assert list(client.map(square, range(40))) == [n * n for n in range(40)]
        assert client.run(second_time, retries=1) == 2
        with pytest.raises(corral.JobFailed, match="ZeroDivisionError"):
            client.run(divmod, (1, 0))
        cancelled = client.submit(gated, (str(tmp_path),))
        until_begun(tmp_path)
        cancelled.cancel()
        with pytest.raises(corral.JobCancelled):
            cancelled.result(timeout=RESULT_S)
        running = client.submit(gated, (str(tmp_path),))
        until_begun(tmp_path)
        assert (live.home / SOCKET).exists() == ("local_socket" in on)
        assert isinstance(client._direct, NotDirect) == ("direct_call" not in on)
    live.kill()
    (tmp_path / "gate").touch()
    live.start()
    with corral.Client(home=live.home) as client:
        assert client.job(running.id).result(timeout=RESULT_S) == 1
        assert client.run(square, (7,)) == 49


def test_a_fast_path_that_there_is_not() -> None:
    with pytest.raises(InvalidSettings, match=r"no fast path 'colums', only all, columns, direct"):
        fast_paths({"CORRAL_WITHOUT": "early_starts, colums"})


def test_all_are_on_where_nobody_says_otherwise() -> None:
    assert fast_paths({}) == FAST_PATHS
    assert fast_paths({"CORRAL_WITHOUT": "columns"}) == FAST_PATHS - {"columns"}
    assert not fast_paths({"CORRAL_WITHOUT": "all"})
