"""Functions that know where to run, and what they become inside a job."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types

import cloudpickle
import pytest

import corral
from corral.sdk import functions
from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client
from tests.sdk.orchestrator import Orchestrator, Served


def test_decorated(client: Client, orchestrator: Orchestrator) -> None:
    @client.function(gpus=1, duration=60)
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert add(1) == 2
    assert not orchestrator.calls
    assert add.remote(1, b=4) == 5
    assert add.submit(2).result() == 3
    assert list(add.map([1, 2], priority=5)) == [2, 3]
    assert list(add.map([1, 2], [3, 4, 5], duration=1)) == [4, 6]
    assert add.options(gpus=2).remote(1) == 2
    assert add.__doc__ == "Adds."
    asked = [(r.submission.gpus, r.submission.priority) for r in orchestrator.jobs.values()]
    assert asked == [(1, 0), (1, 0), (1, 5), (1, 5), (1, 0), (1, 0), (2, 0)]
    with pytest.raises(TypeError, match="Did you mean"):
        client.function(gpuss=1)  # type: ignore[call-overload]


def test_functions_that_call_each_other(client: Client) -> None:
    @client.function
    def inner(x: int) -> int:
        return x + 1

    @client.function
    def outer(x: int) -> int:
        return inner(x) * 2

    assert outer.remote(1) == 4


def test_jobs_submit_no_jobs(client: Client) -> None:
    @client.function
    def inner(x: int) -> int:
        return x + 1

    @client.function
    def outer(x: int) -> int:
        return inner.remote(x)

    with pytest.raises(corral.JobFailed, match=r"inner\.remote\(\).*jobs cannot submit jobs yet"):
        outer.remote(1)


def test_methods(client: Client) -> None:
    class Model:
        def __init__(self, weight: int) -> None:
            self.weight = weight

        @client.function
        def predict(self, x: int) -> int:
            return self.weight * x

    assert Model(3).predict(2) == 6
    assert Model(3).predict.remote(2) == 6
    assert list(Model(3).predict.map([1, 2])) == [3, 6]


def test_free_decorator(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(served.home))
    monkeypatch.delenv("CORRAL_ADDRESS", raising=False)
    monkeypatch.delenv("CORRAL_TOKEN", raising=False)
    functions.default_client.cache_clear()

    @corral.remote
    def one() -> int:
        return 1

    @corral.remote(duration=5)
    def two() -> int:
        return 2

    assert (one.remote(), two.remote()) == (1, 2)
    functions.default_client().close()
    functions.default_client.cache_clear()


def test_in_a_job_it_is_the_plain_function() -> None:
    @corral.remote
    def one() -> int:
        return 1

    assert isinstance(pickle.loads(cloudpickle.dumps(one)), types.FunctionType)


def test_a_client_travels_without_its_token() -> None:
    data = pickle.dumps(Client("127.0.0.1:1", "secret"))
    assert b"secret" not in data
    program = (
        "import sys; sys.modules.update(grpc=None, msgspec=None); import pickle; "
        f"pickle.loads({data!r}); import corral.sdk.functions"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_async_client_decorates_too(aclient: AsyncClient) -> None:
    @aclient.function(priority=1)
    def add(a: int) -> int:
        return a + 1

    assert await add.remote(1) == 2
