"""The caller's own packages arrive with their functions: programs as people run them, each in a
project of its own that no worker has."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.sdk.submit import own_code, packages
from tests.e2e import shapes
from tests.live import LiveController

FILES = {
    "shed/__init__.py": """
        import corral

        @corral.remote(cpus=1)
        def decorated(x):
            return x + 1
    """,
    "shed/tools.py": """
        import multiprocessing

        from . import rakes

        def square(x):
            return x * x

        def squares(way, n):
            with multiprocessing.get_context(way).Pool(2) as pool:
                return pool.map(square, range(n))

        def make(teeth):
            return rakes.Rake(teeth)

        def teeth_of(rake):
            assert isinstance(rake, rakes.Rake), rake
            return rake.teeth

        def lazily(x):
            from . import lazy
            import beside
            return lazy.triple(x) + beside.ONE

        def told():
            import pathlib
            return (pathlib.Path(__file__).parent / "data" / "told.txt").read_text()

        def fails():
            raise rakes.Broken(3)
    """,
    "shed/rakes.py": """
        import dataclasses

        @dataclasses.dataclass
        class Rake:
            teeth: int

        class Broken(Exception):
            pass
    """,
    "shed/lazy.py": "def triple(x):\n    return 3 * x\n",
    "shed/data/told.txt": "told",
    "beside.py": "ONE = 1\n",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def run(project: Path, controller: LiveController) -> Run:
    """A program in the project; what it printed, once it has ended well."""

    def run(*command: str, program: str = "") -> subprocess.CompletedProcess[str]:
        if program:
            write(project, {"main.py": f"import corral\nclient = corral.Client()\n{program}"})
        done = subprocess.run(
            [sys.executable, *(command or ("main.py",))],
            cwd=project,
            env=controller.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    return run


def test_a_package_arrives_with_its_functions(run: Run) -> None:
    done = run(
        program=textwrap.dedent("""
        import shed
        from shed import rakes, tools

        made = client.run(tools.make, (3,))
        assert type(made) is rakes.Rake and made.teeth == 3
        assert client.run(tools.teeth_of, (made,)) == 3
        assert list(client.map(tools.teeth_of, [rakes.Rake(n) for n in range(20)])) == [*range(20)]
        assert client.run(tools.lazily, (2,)) == 7
        assert client.run(tools.told) == "told"
        for way in ("fork", "spawn"):
            assert client.run(tools.squares, (way, 4)) == [0, 1, 4, 9]
        assert shed.decorated.remote(1) == 2
        assert client.run(lambda: tools.square(rakes.Rake(2).teeth)) == 4
        try:
            client.run(tools.fails)
        except rakes.Broken:
            pass
        else:
            raise AssertionError
        """)
    )
    assert done.stderr.count("sent along") == 1, done.stderr
    assert "corral: sent along: beside, shed (6 files, " in done.stderr


def test_what_a_function_of_the_program_imports_goes_along(run: Run) -> None:
    done = run(
        program=textwrap.dedent("""
        def here(x):
            import shed.tools
            return shed.tools.lazily(x)

        def plain(x):
            return x + 1

        assert client.run(plain, (1,)) == 2
        assert client.submit(here, (2,)).result(timeout=60) == 7
        """)
    )
    assert done.stderr.count("sent along") == 1


def test_a_module_that_submits_and_works(run: Run, project: Path) -> None:
    """On a worker it is imported too, where there is nothing to submit with."""
    write(
        project,
        {
            "app.py": """
                from corral import AsyncClient, Client, Handle, JobFailed, remote
                from beside import ONE

                client = Client()

                async def submitted(fn: object) -> Handle:
                    async with AsyncClient() as client:
                        return await client.submit(fn)

                def works():
                    return ONE + helper()

                def helper():
                    return ONE

                @client.function(cpus=1)
                def nests():
                    return works()

                def submits():
                    assert helper() == 1
                    return AsyncClient()
            """
        },
    )
    run(
        program=textwrap.dedent("""
        import app
        assert client.run(app.works) == 2
        assert app.nests.remote() == 2
        try:
            client.run(app.submits)
        except corral.JobFailed as error:
            assert "corral.AsyncClient was used inside a job" in str(error), error
        else:
            raise AssertionError
        """)
    )


def test_from_a_module_of_a_package(run: Run, project: Path) -> None:
    """`python -m`: what it defines is by value, what it imports relatively goes along."""
    write(
        project,
        {
            "shed/__main__.py": """
                import asyncio
                import corral
                from . import tools

                class Here:
                    def __init__(self, x):
                        self.x = x

                def double(here):
                    from .lazy import triple
                    return Here(2 * here.x), tools.make(triple(here.x))

                async def main():
                    async with corral.AsyncClient() as client:
                        here, rake = await client.run(double, (Here(4),))
                        assert type(here) is Here and here.x == 8
                        assert type(rake) is tools.rakes.Rake and rake.teeth == 12
                        assert await client.run(tools.squares, ("fork", 3)) == [0, 1, 4]

                asyncio.run(main())
            """
        },
    )
    assert "sent along: beside, shed (7 files, " in run("-m", "shed").stderr


def test_from_a_notebook(run: Run, project: Path) -> None:
    """What is typed has no file; what it imports has."""
    program = """
        import code
        console = code.InteractiveInterpreter({"__name__": "__main__"})
        cells = [
            "import corral, sys",
            "from shed import tools",
            "def typed(x):\\n    import beside\\n    return tools.make(x + beside.ONE)\\n",
            "client = corral.Client()",
            "made = client.run(typed, (1,))",
            "assert type(made) is tools.rakes.Rake and made.teeth == 2",
            "print('all of it')",
        ]
        for cell in cells:
            console.runsource(cell, symbol="exec")
    """
    write(project, {"notebook.py": program})
    assert run("notebook.py").stdout == "all of it\n"


def test_from_a_test_with_rewritten_asserts(run: Run, project: Path) -> None:
    """Tests are by value: what they import themselves, pytest above all, no worker needs."""
    write(
        project,
        {
            "tests/__init__.py": "",
            "tests/helpers.py": "def half(x):\n    assert x % 2 == 0\n    return x // 2\n",
            "tests/conftest.py": "import pytest\n\ndef helped(x):\n    assert x\n    return x\n",
            "tests/test_shed.py": """
                import corral
                import pytest
                from shed import tools
                from tests import helpers
                from tests.conftest import helped

                client = corral.Client()

                def checked(x):
                    assert tools.square(x) == 9, "no nine"
                    return helped(x) + helpers.half(4)

                def test_it():
                    assert client.run(checked, (3,)) == 5
                    assert type(client.run(tools.make, (1,))) is tools.rakes.Rake

                def test_what_a_failed_assert_says():
                    with pytest.raises(AssertionError, match=r"assert 16 == 9\\s+where 16 ="):
                        client.run(checked, (4,))
            """,
        },
    )
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=prepend", "tests")
    assert "2 passed" in done.stdout


def test_changed_files_are_new_code(run: Run) -> None:
    """In one program and its warm runners: each version where it was sent, none in another."""
    done = run(
        program=textwrap.dedent("""
        import pathlib
        from shed import tools

        lazy = pathlib.Path("shed/lazy.py")
        first = client.submit(tools.lazily, (2,))
        assert first.result(timeout=60) == 7
        before = lazy.read_text()
        lazy.write_text(before.replace("3 *", "5 *"))
        assert client.run(tools.lazily, (2,)) == 11
        pathlib.Path("shed/data/more.txt").write_text("more")
        def more():
            return (pathlib.Path(tools.__file__).parent / "data" / "more.txt").read_text()
        assert client.run(more) == "more"
        lazy.write_text(before)
        pathlib.Path("shed/data/more.txt").unlink()
        assert client.run(tools.lazily, (2,)) == 7
        assert first.retry().result(timeout=60) == 7
        """)
    )
    assert done.stderr.count("sent along") == 3, done.stderr


def test_ignore_files_and_hidden_files(run: Run, project: Path) -> None:
    write(
        project,
        {
            ".gitignore": "*.bin\n/shed/made.py\n/shed/unused.py\n",
            ".git/HEAD": "",
            "shed/.corralignore": "data/big/\n!kept.bin\n",
            "shed/made.py": "MADE = 1\n",
            "shed/unused.py": "",
            "shed/.env": "SECRET=1",
            "shed/left.bin": "",
            "shed/kept.bin": "",
            "shed/data/big/a.txt": "",
            "shed/__pycache__/x.txt": "",
            "shed/venv/pyvenv.cfg": "",
        },
    )
    run(
        program=textwrap.dedent("""
        import shed.made
        from shed import tools

        def files():
            import os, pathlib
            top = pathlib.Path(tools.__file__).parent
            found = (path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())
            return sorted(path for path in found if not path.endswith(".pyc"))

        found = client.run(files)
        assert found == [
            "__init__.py", "data/told.txt", "kept.bin", "lazy.py", "made.py", "rakes.py", "tools.py"
        ], found
        """)
    )


def test_said_or_switched_off(run: Run, project: Path) -> None:
    write(project, {"plugins/one.py": "NAME = 'one'\n", "lib/found.py": "NAME = 'found'\n"})
    done = run(
        program=textwrap.dedent("""
        import importlib, shed
        from shed import tools

        def named(name):
            return importlib.import_module(name).NAME

        def has(name):
            return importlib.util.find_spec(name) is not None

        assert client.run(named, ("plugins.one",), code=["."]) == "one"
        assert client.run(named, ("found",), code=["lib"]) == "found"
        assert client.run(has, ("shed",), code=[shed, "lib"]) is True
        assert client.run(has, ("shed",), code=["lib"]) is False
        made = client.run(tools.make, (3,), code=())
        assert made == tools.make(3)
        for wrong, said in (("nowhere", "is no folder"), (3, "a list of")):
            try:
                client.run(has, ("shed",), code=[wrong])
            except corral.InvalidJob as error:
                assert said in str(error), error
            else:
                raise AssertionError(wrong)
        """)
    )
    assert "found, shed (" in done.stderr


def test_a_worker_keeps_it_and_warm_processes_go_on(
    client: corral.Client, controller: LiveController
) -> None:
    along = own_code.CodeAlong()
    packages.pickle_function(shapes.process, along)
    code = along.packed()
    assert code is not None
    pids = {client.run(shapes.process) for _ in range(6)}
    assert len(pids) < 6
    assert (controller.home / "worker" / "assets" / code.sha256).stat().st_size == len(code.data)


def test_it_arrives_without_an_agent_too(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("processes")
    program = (
        "import corral\nfrom shed import tools\nprint(corral.Client().run(tools.lazily, (2,)))\n"
    )
    (project / "main.py").write_text(program)
    with LiveController(home, "--engine", "processes") as live:
        done = subprocess.run(
            [sys.executable, "main.py"],
            cwd=project,
            env=live.environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert not list((home / "worker" / "assets").glob("?" * 64))
