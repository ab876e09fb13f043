"""One controller and three workers on machines of their own, for all tests here: up takes longer
than most of what is done to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.network import laws, machines, wires

NAMES = ("w1", "w2", "w3")


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[machines.Cluster]:
    if why := wires.unavailable() or machines.no_clock():
        pytest.skip(why)
    network = wires.Network(["controller", *NAMES])
    made = machines.Cluster(network, tmp_path_factory.mktemp("network"), NAMES)
    try:
        made.start()
        yield made
        for worker in made.workers.values():
            worker.stop()
        for worker in made.workers.values():
            assert not worker.job_processes(), f"{worker.name} left without its processes"
    finally:
        made.stop()
        network.close()


@pytest.fixture
def cluster(shared: machines.Cluster) -> Iterator[machines.Cluster]:
    """All is well when a test begins, and no law is broken when it ends."""
    yield shared
    shared.mend()
    laws.processes_gone(shared)
