"""Scripts and folders with requirements, through the command line, as a person types it."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import CORRAL, LiveController

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(controller: LiveController, tmp_path: Path) -> Cli:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CORRAL, *arguments],
            env=controller.environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )

    return run


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_a_script_with_arguments_and_its_exit_code(cli: Cli, tmp_path: Path) -> None:
    script = write(
        tmp_path / "s.py",
        """
        import sys
        print("hello", *sys.argv[1:])
        print("oops", file=sys.stderr)
        sys.exit(int(sys.argv[2]))
        """,
    )
    ran = cli("run", script, "x", "7")
    assert ran.returncode == 7
    assert ran.stdout == "hello x 7\n"
    assert "oops\n" in ran.stderr
    assert cli("run", script, "x", "0").returncode == 0


def test_a_requirement_is_installed_once(cli: Cli, tmp_path: Path) -> None:
    script = write(
        tmp_path / "s.py",
        """
        import humanize, sys
        print(humanize.intcomma(1234567), sys.prefix)
        """,
    )
    first = cli("run", "--with", "humanize", script)
    again = cli("run", "--with", "humanize", script)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("1,234,567 ")
    assert first.stdout == again.stdout
    assert cli("run", script).returncode == 1  # and only there


def test_a_requirement_that_does_not_exist_says_so(cli: Cli, tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", "print('never')")
    ran = cli("run", "--with", "corral-has-no-such-package==1.0", script)
    assert ran.returncode == 1
    assert "corral-has-no-such-package" in ran.stderr
    assert "never" not in ran.stdout


def test_a_folder_with_modules_progress_and_artifacts(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write(
        folder / "main.py",
        """
        import os
        from parts.words import WORD
        from corral import job
        job.progress(0.5, "half")
        with open(os.path.join(os.environ["CORRAL_OUTPUT_DIR"], "out.txt"), "w") as file:
            file.write(WORD)
        print(WORD, open("data.txt").read())
        """,
    )
    write(folder / "parts" / "words.py", "WORD = 'word'")
    write(folder / "parts" / "__init__.py", "")
    write(folder / "data.txt", "data")
    ran = cli("run", "--name", "folder", str(folder))
    assert (ran.returncode, ran.stdout) == (0, "word data\n"), ran.stderr
    shown = json.loads(cli("show", "last", "--json").stdout)
    assert shown["name"] == "folder"
    assert [artifact["name"] for artifact in shown["artifacts"]] == ["out.txt"]
    assert cli("logs", "last").stdout == "word data\n"


def test_submit_then_look_then_cancel(cli: Cli, tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", "import time; print('up', flush=True); time.sleep(1000)")
    submitted = json.loads(cli("submit", "--json", script).stdout)
    job = submitted["job_id"]
    cli("cancel", job)
    shown = json.loads(cli("show", job, "--json").stdout)
    assert shown["state"] in ("cancelled", "stopping")
    listed = json.loads(cli("jobs", "--all", "--json").stdout)
    assert job in [one["job_id"] for one in listed]
    why = cli("why", job)
    assert why.returncode == 0
    assert cli("logs", "-f", job).returncode in (0, 1, 130)
    assert json.loads(cli("show", job, "--json").stdout)["state"] == "cancelled"


def test_unknown_things_get_one_sentence(cli: Cli) -> None:
    for arguments in (["show", "nonsense"], ["run", "missing.py"], ["cancel", "nonsense"]):
        ran = cli(*arguments)
        assert ran.returncode != 0
        assert "Traceback" not in ran.stderr
        assert len(ran.stderr.strip().splitlines()) <= 3, ran.stderr
    error = json.loads(cli("show", "nonsense", "--json").stderr)
    assert error["error"]["code"] == "job_not_found"


def test_status_workers_config(cli: Cli) -> None:
    assert json.loads(cli("status", "--json").stdout)["status"] == "ok"
    (worker,) = json.loads(cli("workers", "--json").stdout)
    assert worker["enforced"]["privileges"] == "no_new_privs"
    config = cli("config").stdout
    assert "grpc_port" in config
    assert "--grpc-port" in config or "default" in config
