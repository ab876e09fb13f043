"""Secrets from `corral secret set` to the job that names them, and nowhere else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import corral
from corral.core.errors import InvalidJob, InvalidSecret, JobFailed, SecretNotFound
from tests.live import CORRAL, LiveController

VALUE = "hf_veryUnlikelyToOccurByChance_42"
OTHER = "another-value-of-a-secret"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("secrets") / "home"
    home.mkdir(mode=0o700)
    (home / "corral.yaml").write_text("log_level: debug\nshutdown_grace_s: 1\n")
    with LiveController(home) as started:
        yield started


@pytest.fixture(scope="module")
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(live.address, live.token) as made:
        made.secrets.set("HF_TOKEN", VALUE)
        yield made


def cli(live: LiveController, *words: str, value: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**live.environ, "FROM_SHELL": OTHER}
    return subprocess.run(
        [CORRAL, *words], env=environ, input=value, text=True, capture_output=True, timeout=60
    )


def traces(home: Path, value: str) -> list[str]:
    """Files of the home that hold a value, beside the one that is made for it."""
    return [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and path.name != "secrets" and value.encode() in path.read_bytes()
    ]


def test_set_list_and_remove_by_command(live: LiveController) -> None:
    said = cli(live, "secret", "set", "PIPED", "--stdin", value=f"{OTHER}\n")
    assert said.returncode == 0, said.stderr
    assert cli(live, "secret", "set", "FROM_SHELL", "--from-env").returncode == 0
    listed = json.loads(cli(live, "secret", "list", "--json").stdout)
    assert {"PIPED", "FROM_SHELL"} <= {one["name"] for one in listed}
    assert OTHER not in cli(live, "secret", "list").stdout
    kept = json.loads((live.home / "secrets").read_text())["secrets"]
    assert kept["PIPED"]["value"] == kept["FROM_SHELL"]["value"] == OTHER
    assert stat.S_IMODE((live.home / "secrets").stat().st_mode) == 0o600
    assert cli(live, "secret", "rm", "PIPED").returncode == 0
    assert cli(live, "secret", "rm", "FROM_SHELL").returncode == 0
    gone = cli(live, "secret", "rm", "PIPED", "--json")
    assert gone.returncode == 1
    assert json.loads(gone.stderr)["error"]["code"] == "secret_not_found"


def test_what_cannot_be_a_secret(client: corral.Client) -> None:
    for name, value in (
        ("HF_TOKEN", "five5"),
        ("LINES", "a\nb\nc\nd\ne\nf\n"),
        ("CORRAL_TOKEN", VALUE),
        ("PATH", VALUE),
        ("NO NAME", VALUE),
        ("LONG", "x" * 20_000),
        ("NUL", "value\0with nul"),
    ):
        with pytest.raises(InvalidSecret) as caught:
            client.secrets.set(name, value)
        assert value not in str(caught.value)
    assert [one.name for one in client.secrets.list()] == ["HF_TOKEN"]


def test_a_job_gets_what_it_names_and_no_other_job_does(
    client: corral.Client, live: LiveController
) -> None:
    def known() -> list[int]:
        return [len(os.environ.get(name, "")) for name in ("HF_TOKEN", "SECOND")]

    client.secrets.set("SECOND", OTHER)
    for _ in range(2):  # the second time in warm runners
        assert client.run(known) == [0, 0]
        assert client.run(known, secrets=["HF_TOKEN"]) == [len(VALUE), 0]
        assert client.run(known, secrets="SECOND") == [0, len(OTHER)]
        assert client.run(known, secrets=["SECOND", "HF_TOKEN"]) == [len(VALUE), len(OTHER)]
    # A new value makes a new process; the old one is not found in any runner again.
    client.secrets.set("SECOND", OTHER * 2)
    assert client.run(known, secrets=["SECOND"]) == [0, 2 * len(OTHER)]
    client.secrets.remove("SECOND")


def test_short_jobs_that_wait_in_a_runner_share_its_secrets_only(client: corral.Client) -> None:
    """Short attempts are sent ahead to a runner that is busy: only if they name the same."""

    def known() -> bool:
        return "HF_TOKEN" in os.environ

    list(client.map(abs, range(200)))  # now the runners are known to be quick
    names = [["HF_TOKEN"] if number % 3 == 0 else [] for number in range(150)]
    with ThreadPoolExecutor(16) as pool:
        handles = list(pool.map(lambda named: client.submit(known, secrets=named), names))
    assert [handle.result(60) for handle in handles] == [bool(named) for named in names]


def test_values_are_nowhere_but_in_the_job(
    client: corral.Client, live: LiveController, tmp_path: Path
) -> None:
    script = tmp_path / "leaky.py"
    script.write_text(
        "import os, sys\nfrom corral import job\n"
        "value = os.environ['HF_TOKEN']\n"
        "print('out', value, flush=True)\nprint('err', value, file=sys.stderr)\n"
        "job.progress(0.5, 'with ' + value)\n"
        "raise SystemExit('died of ' + value)\n"
    )
    said = cli(live, "run", "--secret", "HF_TOKEN", "--batch", "leaks", str(script))
    assert said.returncode == 1
    assert "out [HF_TOKEN]" in said.stdout
    assert "died of [HF_TOKEN]" in said.stderr
    assert VALUE not in said.stdout + said.stderr

    def fails() -> None:
        raise RuntimeError(f"the token {os.environ['HF_TOKEN']} was refused")

    with pytest.raises(JobFailed, match=r"the token \[HF_TOKEN\] was refused"):
        client.run(fails, secrets=["HF_TOKEN"])
    with pytest.raises(JobFailed, match="holds the value of the secret HF_TOKEN"):
        client.run(lambda: os.environ["HF_TOKEN"], secrets=["HF_TOKEN"])
    last = client.jobs(limit=1)[0].job_id
    for command in (("show", last), ("show", last, "--json"), ("logs", last), ("why", last)):
        assert VALUE not in cli(live, *command).stdout
    assert traces(live.home, VALUE) == []
    assert VALUE not in live.log


def test_unknown_names_are_refused_at_submission(client: corral.Client) -> None:
    with pytest.raises(SecretNotFound, match="corral secret set MISSING"):
        client.submit(len, ("x",), secrets=["MISSING"])
    with pytest.raises(InvalidJob, match="in env and in secrets"):
        client.submit(len, ("x",), secrets=["HF_TOKEN"], env={"HF_TOKEN": "x"})
    with pytest.raises(InvalidJob, match="names"):
        client.submit(len, ("x",), secrets={"HF_TOKEN": VALUE})


def test_a_retry_asks_for_its_secrets_again(client: corral.Client) -> None:
    client.secrets.set("BRIEF", OTHER)
    done = client.submit(len, ("x",), secrets=["BRIEF"])
    assert done.result(60) == 1
    client.secrets.remove("BRIEF")
    with pytest.raises(SecretNotFound):
        done.retry()


@pytest.mark.long
def test_secrets_survive_a_crash_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    live = LiveController(tmp_path / "home")
    live.start()
    with corral.Client(live.address, live.token) as client:
        client.secrets.set("HF_TOKEN", VALUE)
    live.kill()
    live.start()
    with corral.Client(live.address, live.token) as client:
        assert [one.name for one in client.secrets.list()] == ["HF_TOKEN"]
        assert client.run(lambda: len(os.environ["HF_TOKEN"]), secrets=["HF_TOKEN"]) == len(VALUE)
    live.stop()
    (live.home / "secrets").write_text("{")
    refused = subprocess.run(
        [CORRAL, "up", "--port", "0", "--grpc-port", "0"],
        env=live.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "corral secret set" in refused.stderr
