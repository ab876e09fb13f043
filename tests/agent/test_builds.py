"""What installing a job's requirements may do to the machine, and that it ends."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.agent.environments.build_steps import BuildSteps, Confine
from corral.agent.environments.builder import RECORD, Environments
from corral.agent.runners.cgroups import Cgroups
from corral.runtime.failures import AttemptFailed
from corral.runtime.sandbox import rules, run_command
from corral.variables import build_environment, build_paths
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController
from tests.agent.test_environments import make_wheel, value_of
from tests.eventually import eventually, eventually_async

needs_landlock = pytest.mark.skipif(
    rules.landlock_version() < 1, reason="this kernel has no Landlock"
)

MakeEnvironments = Callable[..., Environments]


@pytest.fixture
def uv_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose uv has a cache, a Python and a tool of its own."""
    home = tmp_path / "uv"
    monkeypatch.setenv("UV_CACHE_DIR", str(home / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    for name in ("python", "tools"):
        (home / "data" / "uv" / name).mkdir(parents=True)
    return home


@pytest.fixture
def environments(tmp_path: Path, uv_home: Path) -> MakeEnvironments:
    def make(*, confine: bool, cgroups: Cgroups | None = None, **limits: Any) -> Environments:
        reads, cache, pythons = build_paths()
        for folder in (cache, pythons):
            Path(folder).mkdir(parents=True, exist_ok=True)
        walls = Confine((*reads, str(tmp_path)), cache, pythons)
        steps = BuildSteps(
            build_environment(),
            tmp_path / "kit",
            cgroups or Cgroups(tmp_path),
            confine=walls if confine else None,
            **limits,
        )
        made = Environments(
            tmp_path / "environments",
            steps,
            limit_gb=1.0,
            keep_s=3600.0,
            system_site_packages=False,
            in_use=set,
        )
        made.clear_leftovers()
        return made

    return make


BACKEND = """\
import os, subprocess, zipfile

{attack}

METADATA = "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info, wheel = "{name}-1.0.dist-info", "{name}-1.0-py3-none-any.whl"
    files = {{"{name}.py": f"VALUE = {{DONE!r}}\\n", f"{{info}}/METADATA": METADATA}}
    files[f"{{info}}/WHEEL"] = WHEEL
    files[f"{{info}}/RECORD"] = "".join(f"{{path}},,\\n" for path in [*files, f"{{info}}/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
"""


def make_sdist(folder: Path, name: str, attack: str) -> str:
    """A package that comes as source, whose build runs `attack` and keeps what it leaves in DONE
    as the package's VALUE. It needs nothing to be built with."""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project = f'[project]\nname = "{name}"\nversion = "1.0"\n'
    files = {
        "pyproject.toml": system + project,
        "backend.py": BACKEND.format(name=name, attack=attack),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{inside}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name} @ {path.as_uri()}"


TRY = """\
DONE = {{}}
for path in {paths!r}:
    try:
        with open(path, "a") as file:
            file.write("import os\\n")
        DONE[path] = "written"
    except OSError as error:
        DONE[path] = type(error).__name__
"""


@needs_landlock
async def test_a_build_writes_nothing_that_others_run(
    controller: FakeController, start: StartAgent, tmp_path: Path, uv_home: Path
) -> None:
    (sources := tmp_path / "sources").mkdir()
    await start(**{"worker.read_paths": (str(sources),)})
    innocent = controller.job(value_of, "innocent", requirements=(make_wheel(sources, "innocent"),))
    await controller.send(innocent)
    _, prefix = await controller.value(innocent.job)
    [module] = Path(prefix).glob("lib/python*/site-packages/innocent.py")
    [cached] = (uv_home / "cache").glob("archive-v*/*/innocent.py")
    kit = next((tmp_path / "worker" / "kit").glob("*/corral/job.py"))
    paths = [
        *(module, module.with_name("evil.pth"), Path(prefix, "pyvenv.cfg"), Path(prefix, RECORD)),
        *(cached, uv_home / "cache" / "evil", kit),
        *(uv_home / "data" / "uv" / name / "evil" for name in ("python", "tools")),
    ]
    line = make_sdist(sources, "hostile", TRY.format(paths=list(map(str, paths))))
    hostile = controller.job(value_of, "hostile", requirements=(line,))
    await controller.send(hostile)
    done, _ = await controller.value(hostile.job)
    assert done == {str(path): "PermissionError" for path in paths}
    assert module.read_text() == cached.read_text() == "VALUE = 42\n"


@needs_landlock
async def test_no_file_of_an_environment_is_another_name_of_one_elsewhere(
    controller: FakeController, start: StartAgent, tmp_path: Path, uv_home: Path
) -> None:
    """Wheels of both ways: through the cache of all, and beside what is built from source."""
    await start(**{"worker.read_paths": (str(tmp_path),)})
    wheel = make_wheel(tmp_path, "plain")
    for line in ((wheel,), (wheel, make_sdist(tmp_path, "source", "DONE = 42"))):
        job = controller.job(value_of, "plain", requirements=line)
        await controller.send(job)
        _, prefix = await controller.value(job.job)
        found = map(os.lstat, Path(prefix).rglob("*"))
        assert {status.st_nlink for status in found if stat.S_ISREG(status.st_mode)} == {1}
        assert list(Path(prefix).glob("lib/python*/site-packages/__pycache__/plain.*.pyc"))


WIDEN = """\
import glob
DONE = 42
for place in glob.glob({root!r} + "/.building-*/environment"):
    if not os.path.lexists(place + "/{record}"):  # it is asked more than once
        os.unlink(place + "/bin/python")
        os.symlink({private!r} + "/letters/own", place + "/bin/python")
        os.symlink({private!r} + "/letters/new", place + "/{record}")
"""


@needs_landlock
async def test_what_is_installed_cannot_widen_what_jobs_read_or_the_agent_writes(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    """Jobs may read where the interpreter lives, and the agent leaves a note in an environment;
    here a build makes both lead somewhere else."""
    (letters := tmp_path / "private" / "letters").mkdir(parents=True)
    (letters / "own").touch()
    made = environments(confine=True)
    root, private = str(tmp_path / "environments"), str(letters.parent)
    attack = WIDEN.format(root=root, private=private, record=RECORD)
    honest = await made.get(made.spec("", ()))
    built = await made.get(made.spec("", (make_sdist(tmp_path, "widening", attack),)))
    assert os.readlink(built.python) == str(letters / "own")
    assert built.base == honest.base
    assert [path.name for path in letters.iterdir()] == ["own"]


DAEMON = """\
import subprocess, sys
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
command = [sys.executable, "-c", {code!r}]
subprocess.Popen(command, start_new_session=True, env={{}}, **quiet)
DONE = 42
"""
STAY = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"


def daemons(code: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if code in (process.info["cmdline"] or ())
    ]


@pytest.mark.parametrize("confine", [True, False])
async def test_no_process_of_a_build_outlives_it(
    environments: MakeEnvironments, tmp_path: Path, confine: bool
) -> None:
    """One that left its session, its parents and its environment."""
    code = f"{STAY} # {tmp_path}"
    made = environments(confine=confine)
    line = make_sdist(tmp_path, "lasting", DAEMON.format(code=code))
    await made.get(made.spec("", (line,)))
    assert daemons(code) == []


async def test_the_processes_of_a_build_that_is_given_up_go_with_it(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    code = f"{STAY} # {tmp_path}"
    made = environments(confine=True)
    attack = DAEMON.format(code=code) + "\nimport time; time.sleep(600)"
    asked = asyncio.create_task(made.get(made.spec("", (make_sdist(tmp_path, "slow", attack),))))
    await eventually_async(lambda: daemons(code), "the build to begin")
    await made.close()
    await asyncio.gather(asked, return_exceptions=True)
    assert daemons(code) == []


MURDER = """\
import os, signal
pid = os.getpid()
while "confined.py" not in open(f"/proc/{pid}/cmdline").read():
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
os.kill(pid, signal.SIGKILL)
"""


async def test_a_build_that_kills_its_supervisor_leaves_nothing_either(
    environments: MakeEnvironments, tmp_path: Path
) -> None:
    """Where signals are not confined."""
    cgroups = Cgroups(tmp_path)
    await cgroups.open()
    if (trial := cgroups.make("trial")) is None:
        pytest.skip("no control groups of our own here")
    trial.remove()
    code = f"{STAY} # {tmp_path}"
    made = environments(confine=False, cgroups=cgroups)
    attack = DAEMON.format(code=code) + MURDER
    with pytest.raises(AttemptFailed):
        await made.get(made.spec("", (make_sdist(tmp_path, "murderous", attack),)))
    assert daemons(code) == []
    cgroups.close()
    assert not os.path.exists(os.path.dirname(trial.path))


HOLD = """\
import os, time
for _ in range({processes} - 1):
    if not os.fork():
        break
held = bytearray(os.urandom(1 << 20)) * {mb}
time.sleep({seconds})
DONE = len(held)
"""


@pytest.mark.parametrize(("processes", "mb", "seconds"), [(1, 4000, 0), (5, 200, 600)])
async def test_a_build_holds_no_more_memory_than_its_worker_has(
    environments: MakeEnvironments, tmp_path: Path, processes: int, mb: int, seconds: int
) -> None:
    """Neither one of its processes nor all of them together."""
    attack = HOLD.format(processes=processes, mb=mb, seconds=seconds)
    made = environments(confine=True, memory_gb=0.6)
    line = make_sdist(tmp_path, "greedy", attack)
    with pytest.raises(
        AttemptFailed, match="MemoryError" if processes == 1 else "held .* of memory"
    ):
        await made.get(made.spec("", (line,)))


def test_the_processes_of_a_build_end_when_its_agent_is_killed(tmp_path: Path) -> None:
    code = f"{STAY} # {tmp_path}"
    inner = DAEMON.format(code=code) + "\nimport time; time.sleep(600)"
    command = [sys.executable, "-I", "-S", run_command.__file__, "{}", sys.executable, "-c", inner]
    agent = f"import subprocess, time; subprocess.Popen({command!r}, stdin=-1); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", agent]) as holder:
        eventually(lambda: daemons(code), "the build to begin")
        holder.send_signal(signal.SIGKILL)
    eventually(lambda: not daemons(code) and not daemons(inner), "the build to end")
