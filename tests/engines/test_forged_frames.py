"""A job that writes frames of its own making beside those of its runner: it has failed, and neither
its process nor its worker is to blame."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator

import pytest

from corral import Client
from corral.core.errors import JobFailed
from tests.engines.test_standalone import live

NO_FRAMES = (
    {"frame": "progress", "fraction": 7, "message": ""},
    {"frame": "output", "stream": "stdout", "text": 5},
    {"frame": "output", "stream": "stdout", "data": "a!b@c=="},
    {"frame": "result"},
    {"frame": "result", "result": 7},
    {"frame": "error", "failure": [1]},
    {"frame": "error", "failure": {"code": "exception", "message": "\ud800"}},
    {"frame": "error", "failure": {"code": "exception", "message": "m", "exit_code": 0.5}},
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with live(tmp_path_factory.mktemp("forged") / "home") as here, Client(home=here.home) as made:
        yield made


@pytest.mark.parametrize("forged", NO_FRAMES, ids=lambda one: json.dumps(one)[:60])
def test_what_is_no_frame_is_the_jobs_failure(client: Client, forged: object) -> None:
    line = json.dumps(forged).encode() + b"\n"

    def forges() -> None:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if int(name) > 2 and stat.S_ISFIFO(os.fstat(int(name)).st_mode):
                    os.write(int(name), line)
        time.sleep(60)

    handle = client.submit(forges, cpus=0.1)
    with pytest.raises(JobFailed) as failed:
        handle.result(30)
    assert failed.value.failure.code == "no_result"
    assert handle.status().attempt == 1
