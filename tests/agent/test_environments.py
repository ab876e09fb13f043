"""Environments: built once, found again, failed clearly, cleaned by size."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from corral.agent.environments import manifest
from corral.agent.environments.build_steps import BuildSteps
from corral.agent.environments.builder import RECORD, Environment, Environments, Spec
from corral.agent.environments.manifest import SMALL_BYTES
from corral.agent.runners.cgroups import Cgroups
from corral.protocol import messages as wire
from corral.runtime.environments import uv
from corral.runtime.failures import AttemptFailed
from corral.runtime.sandbox import rules
from corral.variables import build_environment
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController


def make_wheel(
    folder: Path, name: str, size: int = 0, more: Mapping[str, str] | None = None
) -> str:
    """A package that needs no registry, as a requirement line."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name}.py": "VALUE = 42\n",
        f"{name}_data.txt": "x" * size,
        f"{name}-1.0.dist-info/METADATA": metadata,
        f"{name}-1.0.dist-info/WHEEL": tags,
        **(more or {}),
    }
    record = "".join(f"{path},,{len(text)}\n" for path, text in files.items())
    record += f"{name}-1.0.dist-info/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{name}-1.0.dist-info/RECORD": record}.items():
            archive.writestr(path, text)
    return f"{name} @ {wheel.as_uri()}"


needs_landlock = pytest.mark.skipif(
    rules.landlock_version() < 1, reason="this kernel has no Landlock"
)

MakeEnvironments = Callable[..., Environments]


@pytest.fixture
def environments(tmp_path: Path) -> MakeEnvironments:
    def make(
        *,
        limit_gb: float = 1.0,
        keep_s: float = 3600.0,
        in_use: Collection[str] = (),
        **variables: str,
    ) -> Environments:
        steps = BuildSteps(
            {**build_environment(), **variables}, tmp_path / "kit", Cgroups(tmp_path)
        )
        made = Environments(
            tmp_path / "environments",
            steps,
            limit_gb=limit_gb,
            keep_s=keep_s,
            system_site_packages=False,
            in_use=lambda: set(in_use),
        )
        made.clear_leftovers()
        return made

    return make


def value_of(name: str) -> tuple[int, str]:
    return __import__(name).VALUE, sys.prefix


def variable(name: str) -> str | None:
    return os.environ.get(name)


async def test_attempts_that_wait_for_the_same_environment_share_one_build(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start(**{"worker.read_paths": (str(tmp_path),)})
    line = make_wheel(tmp_path, "answers")
    jobs = [controller.job(value_of, "answers", requirements=(line,)) for _ in range(3)]
    await controller.send(*jobs)
    answers = [await controller.value(job.job) for job in jobs]
    assert {value for value, _ in answers} == {42}
    assert len({prefix for _, prefix in answers}) == 1
    for job in jobs:
        progress = await controller.expect(wire.JobProgress, job.job)
        assert progress.message == "building environment (1 requirement)"
    again = controller.job(value_of, "answers", requirements=(line,))
    await controller.send(again)
    await controller.completed(again.job)
    assert not [
        message
        for message in controller.heard
        if isinstance(message, wire.JobProgress) and message.job == again.job
    ]


async def test_a_project_around_the_home_changes_nothing(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    """A home may lie inside somebody's checkout; its uv settings are not the job's."""
    (tmp_path / "pyproject.toml").write_text('[tool.uv]\nrequired-version = "==0.0.1"\n')
    made = environments()
    built = await made.get(made.spec("", (make_wheel(tmp_path, "inside"),)))
    assert Path(built.python).exists()


async def test_a_requirement_that_cannot_be_installed_fails_with_what_uv_said(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start()
    missing = (tmp_path / "missing-1.0-py3-none-any.whl").as_uri()
    job = controller.job(os.getpid, requirements=(f"missing @ {missing}",))
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "environment_failed"
    assert "missing" in failure.message.split("uv said:")[1]


async def test_a_python_that_uv_cannot_provide_is_named(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(os.getpid, python="3.99")
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "python_unavailable"
    assert "needs Python 3.99" in failure.message


async def test_a_worker_whose_kit_lost_its_bytes_works(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    """A power cut some seconds after the first start left every name, and nothing in any file."""
    made = manifest.assemble_kit(tmp_path / "worker" / "kit")
    for path in made.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    await start()
    job = controller.job(os.getpid)
    await controller.send(job)
    assert await controller.value(job.job) > 0


async def test_an_odd_python_never_reaches_uv(environments: MakeEnvironments) -> None:
    with pytest.raises(AttemptFailed) as caught:
        await environments().get(Spec(python="/bin/sh"))
    assert caught.value.failure["code"] == "wrong_document"


async def test_a_finished_environment_is_found_by_the_next_agent(
    environments: MakeEnvironments,
) -> None:
    first = environments()
    spec = first.spec("", ())
    assert spec.python == uv.own_minor()
    built = await first.get(spec)
    inode = built.path.stat().st_ino
    second = environments()
    assert await second.get(spec) == built == second.ready(spec)
    assert built.path.stat().st_ino == inode


async def test_half_an_environment_is_built_again(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    spec = environments().spec("", ())
    half = tmp_path / "environments" / spec.digest
    half.mkdir()
    (half / RECORD).write_text("{}")
    built = await environments().get(spec)
    assert built.python.exists()


def _value(found: Environment, package: str) -> str:
    told = [str(found.python), "-I", "-c", f"import {package}; print({package}.VALUE)"]
    return subprocess.run(told, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("size", [0, SMALL_BYTES + 1], ids=["by content", "by size"])
async def test_an_environment_that_lost_its_files_is_built_again(
    environments: MakeEnvironments, tmp_path: Path, size: int
) -> None:
    """What a power cut leaves: every name, and nothing in any of them."""
    first = environments()
    spec = first.spec("", (make_wheel(tmp_path, "hollow", size=size),))
    built = await first.get(spec)
    for path in built.path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.unlink()  # uv may have linked it into its cache
            path.touch()
    again = await environments().get(spec)
    assert _value(again, "hollow") == "42"


async def test_one_file_that_is_not_what_it_was_is_found(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    first = environments()
    spec = first.spec("", (make_wheel(tmp_path, "rotten"),))
    built = await first.get(spec)
    [module] = built.path.glob("lib/python*/site-packages/rotten.py")
    module.unlink()
    module.write_text("VALUE = 43\n")
    os.utime(module, (1, 1))  # its bytecode does not hide it
    again = await environments().get(spec)
    assert _value(again, "rotten") == "42"


async def test_a_damaged_cache_of_uv_is_seen_and_cleaned(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    """A build that a power cut ended leaves empty files in the cache, which uv takes on trust."""
    cache = tmp_path / "cache"
    line = make_wheel(tmp_path, "stale")
    made = environments(UV_CACHE_DIR=str(cache))
    built = await made.get(made.spec("", (line,)))
    shutil.rmtree(built.path)
    [kept] = cache.glob("archive-v*/*/stale.py")
    kept.write_bytes(b"")
    again = environments(UV_CACHE_DIR=str(cache))
    assert _value(await again.get(again.spec("", (line,))), "stale") == "42"


async def test_the_order_of_requirements_does_not_matter(environments: MakeEnvironments) -> None:
    made = environments()
    assert made.spec("", ("a", "b")) == made.spec("", ("b", "a"))
    assert made.spec("", ("a",)).digest != made.spec("", ("b",)).digest


async def test_the_longest_unused_environments_go_and_never_one_in_use(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    in_use: set[str] = set()
    made = environments(limit_gb=5 / 1024, in_use=in_use)
    specs = [
        made.spec("", (make_wheel(tmp_path, f"large{number}", size=2 * 1024**2),))
        for number in range(3)
    ]
    in_use.add(specs[0].digest)
    for spec in specs:
        await made.get(spec)
    assert [made.ready(spec) is not None for spec in specs] == [True, False, True]


async def test_environments_that_nobody_used_for_long_go(environments: MakeEnvironments) -> None:
    made = environments()
    found = await made.get(made.spec("", ()))
    await environments().clean()
    assert found.path.exists()
    os.utime(found.path / RECORD, (0, 0))
    await environments(in_use=[found.digest]).clean()
    assert found.path.exists()
    await environments().clean()
    assert not found.path.exists()


async def test_everybody_who_waits_for_a_failed_build_hears_of_it(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    made = environments()
    spec = made.spec("", (f"missing @ {(tmp_path / 'missing-1.0-py3-none-any.whl').as_uri()}",))
    asked = [made.get(spec) for _ in range(3)]
    failures = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(failure, AttemptFailed) for failure in failures)
    with pytest.raises(AttemptFailed):
        await made.get(spec)
    left = [path.name for path in (tmp_path / "environments").iterdir()]
    assert left == []


async def test_a_build_sees_no_more_of_the_machine_than_a_job(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    """A requirement whose build steps outside: it may not read the worker's secrets."""
    package = tmp_path / "nosy"
    package.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("for the owner alone")
    (package / "setup.py").write_text(
        "from setuptools import setup\n"
        f"open({str(secret)!r}).read()\n"
        "setup(name='nosy', version='1')\n"
    )
    await start(**{"worker.read_paths": (str(package),)})
    job = controller.job(os.getpid, requirements=(f"nosy @ {package.as_uri()}",))
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "environment_failed"
    assert "Permission denied" in failure.message


async def test_the_workers_own_packages_are_shown_where_it_says_so(
    controller: FakeController, start: StartAgent
) -> None:
    """msgspec is no part of a job's environment, but of the worker's."""

    def where(name: str) -> str:
        return str(__import__(name).__file__)

    await start(**{"worker.system_site_packages": True})
    job = controller.job(where, "msgspec")
    await controller.send(job)
    assert str(await controller.value(job.job)).startswith(sys.prefix)


async def test_an_environment_that_somebody_removed_is_built_again(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start()
    first = controller.job(os.getpid, fresh=True)
    await controller.send(first)
    await controller.value(first.job)
    for path in (tmp_path / "worker" / "environments").iterdir():
        shutil.rmtree(path)
    broken = controller.job(os.getpid, fresh=True)
    await controller.send(broken)
    assert (await controller.failed(broken.job)).failure.code == "process_died"
    again = controller.job(os.getpid, fresh=True)
    await controller.send(again)
    assert await controller.value(again.job)


PEEK = """\
import os; exec("try: os.environ['SEEN'] = open({path!r}).read()\\n\
except OSError as error: os.environ['SEEN'] = type(error).__name__")
"""
"""A line of a `.pth` file: every Python that finds it runs it, before anything else."""


@needs_landlock
async def test_what_a_package_runs_at_every_start_runs_behind_the_walls(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    credentials = tmp_path / "worker" / "agent.json"
    await start(**{"worker.read_paths": (str(tmp_path / "wheels"),)})
    (tmp_path / "wheels").mkdir()
    peeking = {"peek.pth": PEEK.format(path=str(credentials))}
    line = make_wheel(tmp_path / "wheels", "peek", more=peeking)
    job = controller.job(variable, "SEEN", requirements=(line,))
    await controller.send(job)
    assert await controller.value(job.job) == "PermissionError"


@needs_landlock
async def test_a_jobs_variables_reach_nothing_before_its_walls_stand(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    """The loader obeys variables in every program: it would write, or load, whatever they name."""
    await start()
    env = {"LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": str(tmp_path / "loader")}
    job = controller.job(variable, "LD_DEBUG", env=env)
    await controller.send(job)
    assert await controller.value(job.job) == "statistics"
    assert not list(tmp_path.glob("loader*"))
