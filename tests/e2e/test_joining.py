"""A second machine joins over TLS: real certificate, real sockets, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.cli.workers.join import enrol as _enrol
from corral.core.errors import CorralError, JobFailed, Unauthorized
from corral.home import read_json
from corral.joining import trust
from corral.joining.invitation import parse
from tests import kit
from tests.eventually import eventually
from tests.live import CORRAL, LiveController
from tests.ports import free_port

YAML = "tls: always\nadvertise: 127.0.0.1\ngrace_s: 2\ncancel_grace_s: 1\nshutdown_grace_s: 1\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("tls")
    (home / "corral.yaml").write_text(f"{YAML}worker: {{cpus: 1}}\n")
    ports = [f"--port={free_port()}", f"--grpc-port={free_port()}"]  # the same after a restart
    with LiveController(home, *ports) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


class Machine:
    """Another machine, as far as a home of its own and processes of its own make one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("CORRAL_")}
        self.environ["CORRAL_HOME"] = str(home)
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CORRAL, *words], env=self.environ, capture_output=True, text=True, timeout=60
        )

    def join(self, invitation: str, *words: str) -> None:
        self.home.mkdir(exist_ok=True)
        kit.give(self.home)
        with (self.home / "out").open("wb") as out:
            self.process = subprocess.Popen(
                [CORRAL, "worker", "join", "--foreground", *filter(None, [invitation]), *words],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(20)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            import psutil

            for child in psutil.Process(self.process.pid).children():
                child.send_signal(signal.SIGTERM)
            self.process.wait(20)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    yield made
    made.stop()


def connected(client: corral.Client, name: str) -> bool:
    return any(one.name == name and one.connected for one in client.workers())


def test_a_machine_joins_works_and_is_steered(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    def much(count: int) -> bytes:
        with open(f"{os.environ['CORRAL_OUTPUT_DIR']}/made.txt", "w") as file:
            file.write("made there")
        return b"x" * count

    machine.join(client.admin.invite_worker(), "--name", "gaming")
    eventually(lambda: connected(client, "gaming"), "gaming is connected")
    handle = client.submit(much, (300_000,), worker="gaming")  # too large for a frame: over HTTPS
    assert handle.result(30) == b"x" * 300_000
    assert handle.status().worker == "gaming"
    assert [artifact.name for artifact in handle.status().artifacts] == ["made.txt"]

    admin = client.admin
    assert admin.change_worker("gaming", labels=["fast"]).labels == ("fast",)
    assert client.run(abs, (-1,), worker_labels=["fast"], output=None) == 1
    assert admin.change_worker("gaming", name="big").name == "big"
    assert admin.change_worker("big", draining=True).draining
    waiting = client.submit(abs, (-2,), worker="big")
    time.sleep(0.5)
    assert waiting.status().state == "queued"
    admin.change_worker("big", draining=False)
    assert waiting.result(20) == 2
    assert read_json(machine.home / "worker" / "agent.json")["name"] == "big"

    admin.revoke_worker("big")
    assert machine.ended() == 77
    assert "revoked" in (machine.home / "out").read_text()
    assert not any(worker.name == "big" for worker in client.workers())


def test_what_a_revoked_worker_ran_goes_elsewhere(
    live: LiveController, client: corral.Client, machine: Machine, tmp_path: Path
) -> None:
    def where(seconds: float) -> int:
        time.sleep(seconds if os.environ["CORRAL_ATTEMPT"] == "1" else 0)
        return int(os.environ["CORRAL_ATTEMPT"])

    machine.join(client.admin.invite_worker(), "--name", "leaving")
    eventually(lambda: connected(client, "leaving"), "leaving is connected")
    client.admin.change_worker("leaving", labels=["mark"])
    mine = client.submit(where, (600,), worker_labels=["mark"])
    eventually(lambda: mine.status().state == "running", "it runs")
    client.admin.revoke_worker("leaving")
    local = next(one.name for one in client.workers() if one.connected)
    client.admin.change_worker(local, labels=["mark"])
    assert mine.result(20) == 2
    client.admin.change_worker(local, labels=[])
    told = "\n".join(mine.why().history)
    assert "attempt 1 placed on leaving: " in told  # by the name it had, not by its id


@pytest.mark.long
def test_a_worker_comes_back_by_itself(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    machine.join(client.admin.invite_worker(), "--name", "steady")
    eventually(lambda: connected(client, "steady"), "steady is connected")
    live.kill()
    live.start()
    with corral.Client(home=live.home) as again:
        eventually(lambda: connected(again, "steady"), "steady is connected")
        assert again.run(abs, (-3,), worker="steady", output=None) == 3
        again.admin.revoke_worker("steady")


@pytest.mark.long
def test_a_controller_that_stops_ends_nothing_elsewhere(tmp_path: Path, machine: Machine) -> None:
    def slow(seconds: float) -> int:
        time.sleep(seconds)
        return int(os.environ["CORRAL_ATTEMPT"])

    home = tmp_path / "controller"
    home.mkdir()
    (home / "corral.yaml").write_text(YAML.replace("grace_s: 2\n", "grace_s: 20\n", 1))
    port = free_port()
    with LiveController(home, f"--port={port}") as live:
        with corral.Client(home=home) as client:
            machine.join(client.admin.invite_worker(), "--name", "elsewhere")
            eventually(lambda: connected(client, "elsewhere"), "elsewhere is connected")
            mine = client.submit(slow, (4.0,), worker="elsewhere")
            eventually(lambda: mine.status().state == "running", "it runs")
        live.stop()  # its grace is 1 s
        live.start()
        with corral.Client(home=home) as again:
            assert again.job(mine.id).result(30) == 1

        assert "know this controller by" not in live.log
        live.stop()
        live.flags = ()  # other ports
        live.start()
        assert f"The workers elsewhere know this controller by https://127.0.0.1:{port}" in live.log
        with corral.Client(home=home) as moved:
            machine.run("worker", "join", "--foreground", moved.admin.invite_worker())
            eventually(lambda: connected(moved, "elsewhere"), "elsewhere is connected")
            moved.admin.revoke_worker("elsewhere")


@pytest.mark.long
def test_who_stopped_and_who_is_missing(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    machine.join(client.admin.invite_worker(), "--name", "sleepy")
    eventually(lambda: connected(client, "sleepy"), "sleepy is connected")
    began = time.time()
    machine.stop()
    eventually(lambda: not connected(client, "sleepy"), "sleepy is away")
    gone = next(one for one in client.workers() if one.name == "sleepy")
    assert (gone.left, gone.draining) == (True, False)
    assert gone.seen_at >= began
    assert "worker_left" in live.log
    live.kill()
    live.start()
    with corral.Client(home=live.home) as again:
        after = next(one for one in again.workers() if one.name == "sleepy")
        assert (after.left, after.seen_at) == (True, gone.seen_at)
        again.admin.revoke_worker("sleepy")


def test_an_invitation_opens_nothing_else(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    told = parse(client.admin.invite_worker())
    pem = trust.fetched(told.host, told.port, told.sha256)
    for path in ("/workers", "/jobs", "/tokens"):
        request = urllib.request.Request(told.url + path)
        request.add_header("Authorization", f"Bearer {told.token}")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, context=trust.context(pem), timeout=10)
        assert refused.value.code == 401
        refused.value.close()
    login = machine.run("login", told.text())
    assert login.returncode
    assert "This string is for workers: `corral worker join` takes it." in login.stderr
    login = machine.run("login", told._replace(for_client=True).text())
    assert login.returncode
    assert "not good here" in login.stderr
    assert not (machine.home / "login.json").exists()


def test_nobody_in_between(live: LiveController, client: corral.Client, machine: Machine) -> None:
    told = parse(client.admin.invite_worker())
    other = told._replace(sha256="0" * 64)
    refused = machine.run("worker", "join", other.text())
    assert refused.returncode
    assert "certificate is another one" in refused.stderr
    assert not (machine.home / "worker" / "agent.json").exists()
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{told.url}/health", timeout=10)
    with pytest.raises(OSError):  # nothing is said in the clear  # noqa: PT011
        urllib.request.urlopen(f"http://{told.host}:{told.port}/health", timeout=10)


def test_an_old_invitation_is_void(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    before = client.admin.invite_worker()
    client.admin.invite_worker(renew=True)
    refused = machine.run("worker", "join", before)
    assert refused.returncode
    assert "not good any more" in refused.stderr


def _look_for(token: str) -> list[str]:
    """A job that reads whatever it can of other processes."""
    import glob

    found = []
    for path in [*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ")]:
        try:
            with open(path, "rb") as file:
                found += [path] * (token.encode() in file.read())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_no_process_keeps_the_invitation(client: corral.Client, machine: Machine, how: str) -> None:
    invitation = client.admin.invite_worker()
    token = parse(invitation).token
    machine.home.mkdir()
    if how == "variable":
        machine.environ["CORRAL_INVITATION"] = invitation
        machine.join("", "--name", how)
    else:
        machine.join(invitation, "--name", how)
    eventually(lambda: connected(client, how), f"{how} is connected")
    assert client.run(_look_for, (token[4:-4],), worker=how, output=None) == []
    assert _look_for(token) == [], "nor can anybody else of this user"


@pytest.mark.long
def test_an_invitation_has_an_end_and_so_many_uses(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    def invited(*words: str) -> str:
        made = subprocess.run(
            [CORRAL, "invite", "--json", *words], env=live.environ, capture_output=True, check=True
        )
        return str(json.loads(made.stdout)["invitation"])

    once = invited("--for", "1h", "--uses", "1")
    machine.join(once, "--name", "only")
    eventually(lambda: connected(client, "only"), "only is connected")
    other = Machine(machine.home.with_name("other"))
    late = other.run("worker", "join", once)
    assert "As many machines have joined with this invitation as it was made for." in late.stderr
    assert "Ask for a new one: `corral invite`." in late.stderr
    ended = invited("--for", "0.001s")
    assert "This invitation was good until" in other.run("worker", "join", ended).stderr
    told = subprocess.run(
        [CORRAL, "invite", "--uses", "2"], env=live.environ, capture_output=True, text=True
    )
    assert told.stdout.startswith("CORRAL_INVITATION='corral://")
    assert "2 machines can join with this until 2" in told.stderr
    for wrong in ("--uses=0", "--for=0", "--for=soon", "--client=x --uses=1"):
        assert subprocess.run([CORRAL, "invite", *wrong.split()], env=live.environ).returncode


def test_who_never_connected_is_revoked_too(live: LiveController, client: corral.Client) -> None:
    """Whoever got hold of an invitation may keep what it enrolled for later."""
    told = parse(client.admin.invite_worker())
    pem = trust.fetched(told.host, told.port, told.sha256)
    card = _enrol(told.url, told.token, "lurker", pem)
    assert not any(one.name == "lurker" for one in client.workers())
    assert client.admin.revoke_worker("lurker").id == card["worker_id"]
    with pytest.raises(CorralError, match="No worker is called"):
        client.admin.revoke_worker("lurker")


def test_a_client_elsewhere_logs_in(
    live: LiveController, client: corral.Client, machine: Machine
) -> None:
    invitation = client.admin.invite_client("laptop", "submit")
    wrong = machine.run("worker", "join", invitation)
    assert wrong.returncode
    assert "This string is for clients: `corral login` takes it." in wrong.stderr
    assert machine.run("login", invitation).returncode == 0
    with corral.Client(home=machine.home) as laptop:
        assert laptop.run(abs, (-4,), output=None) == 4
        with pytest.raises(CorralError, match="admin"):
            laptop.admin.revoke_token("laptop")
        with pytest.raises(JobFailed):
            laptop.run(int, ("x",), output=None)
    client.admin.revoke_token("laptop")
    with corral.Client(home=machine.home) as laptop, pytest.raises(Unauthorized):
        laptop.workers()
    assert "Forgotten" in machine.run("logout").stdout


def test_this_machine_cannot_be_revoked(client: corral.Client) -> None:
    local = next(one.name for one in client.workers() if one.connected)
    with pytest.raises(CorralError, match="own machine"):
        client.admin.revoke_worker(local)


def test_without_tls_nobody_is_invited(controller: LiveController) -> None:
    with (
        corral.Client(controller.address, controller.token) as alone,
        pytest.raises(CorralError, match=r"--host 0\.0\.0\.0"),
    ):
        alone.admin.invite_worker()


def test_one_way_to_be_kept(client: corral.Client, machine: Machine) -> None:
    invitation = client.admin.invite_worker()
    for other in ("--foreground", "--service"):
        refused = machine.run("worker", "join", invitation, "--detach", other)
        assert refused.returncode
        assert f"{other} does something else with it: give one of the two." in refused.stderr
    assert not machine.home.exists()  # and nobody was enrolled


@pytest.mark.long
def test_a_machine_that_leaves_works_no_more(client: corral.Client, machine: Machine) -> None:
    machine.home.mkdir()
    done = machine.run("worker", "join", client.admin.invite_worker(), "--name", "gone", "--detach")
    assert done.returncode == 0, done.stdout + done.stderr
    eventually(lambda: connected(client, "gone"), "gone is connected")
    again = machine.run("worker", "join", client.admin.invite_worker(), "--name", "x", "--detach")
    assert "On the controller: corral worker rename gone x" in again.stderr
    done = machine.run("worker", "leave")
    assert "no worker any more" in done.stdout, done.stdout + done.stderr
    assert not connected(client, "gone")
    assert machine.run("worker", "leave").returncode != 0
