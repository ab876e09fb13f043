"""A kit, a controller for transfers, and runners that are gone after each test."""

from __future__ import annotations

import compileall
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import corral
from tests.runtime.harness import Controller, Runner

StartRunner = Callable[..., Runner]


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit")
    for package in (corral, cloudpickle):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder, quiet=2)
    return folder


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    yield controller
    controller.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs with both kinds of runner, but for those about what one of them has alone."""
    if "runner_kind" in metafunc.fixturenames:
        forked = metafunc.definition.get_closest_marker("forked")
        spawned = pytest.param("spawned", marks=pytest.mark.long)
        metafunc.parametrize("runner_kind", ["forked"] if forked else ["forked", spawned])


@pytest.fixture
def start_runner(
    kit: Path, tmp_path: Path, controller: Controller, runner_kind: str
) -> Iterator[StartRunner]:
    started: list[Runner] = []

    def start(**config: Any) -> Runner:
        folder = tmp_path / f"runner{len(started)}"
        runner = Runner(kit, folder, controller, spawn=runner_kind == "spawned", **config)
        started.append(runner)
        return runner

    yield start
    for runner in started:
        runner.close()


@pytest.fixture
def runner(start_runner: StartRunner) -> Runner:
    return start_runner()
