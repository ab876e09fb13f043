"""The controller of a home as the command line sees it: whether it is there, and ending it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from corral import __version__
from corral.contract import corral_pb2 as pb
from tests.cli.conftest import Corral
from tests.sdk.orchestrator import Orchestrator, Served


def test_status(corral: Corral, served: Served) -> None:
    assert "status" in corral("status").out
    assert served.address in corral("status").out
    log = str(served.home / "log" / "controller.log")
    assert log in corral("status").out
    found = corral("status", "--json").json
    assert (found["status"], found["pid"], found["log"]) == ("ok", 0, log)
    assert found["home"] == str(served.home)


def test_status_of_a_paused_queue(
    corral: Corral, served: Served, orchestrator: Orchestrator
) -> None:
    assert "ago by" not in corral("status").out
    orchestrator.queue = pb.QueueView(paused=True, paused_at=time.time() - 120, paused_by="ada")
    assert "paused 2.0 min ago by ada" in corral("status").out
    assert corral("status", "--json").json["paused"] is True


def test_status_of_nothing(corral: Corral, nobody: None) -> None:
    done = corral("status", "--json")
    assert done.code == 1
    assert json.loads(done.err)["error"]["code"] == "unavailable"


def test_config(corral: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text("worker:\n  gpus: [{name: RTX 3090, vram_gb: 24}]\n")
    monkeypatch.setenv("CORRAL_PORT", "8701")
    found = corral("config", "--json").json
    assert found["home"] == str(home)
    assert found["settings"]["port"] == {"value": 8701, "source": "CORRAL_PORT"}
    assert found["settings"]["worker.gpus"]["value"] == [{"name": "RTX 3090", "vram_gb": 24.0}]
    assert found["settings"]["host"]["source"] == "default"
    assert "CORRAL_PORT" in corral("config").out
    (home / "corral.yaml").write_text("prot: 1\n")
    wrong = corral("up", "--detach")
    assert wrong.code == 1
    assert "Did you mean port?" in wrong.err


def test_detached_start_passes_the_reason_on(corral: Corral, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "journal").write_text("a file where a folder belongs")
    done = corral("up", "--detach", "--port", "0", "--grpc-port", "0")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert str(home) in done.err


@pytest.fixture
def pretender(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that looks like a controller and ends politely."""
    program = "import signal, sys; print('up', flush=True); signal.sigwait([signal.SIGTERM])"
    program = (
        f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); {program}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "corral"], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def card(home: Path, pid: int, started_at: float, **more: str) -> None:
    home.mkdir(exist_ok=True)
    written = {"pid": pid, "started_at": started_at, **more}
    (home / "controller.json").write_text(json.dumps(written))


def test_down(corral: Corral, tmp_path: Path, pretender: subprocess.Popen[bytes]) -> None:
    card(tmp_path / "home", pretender.pid, time.time() + 1)
    assert corral("down").out == "The controller is down.\n"
    assert pretender.wait(5) == 0
    again = corral("down")
    assert (again.code, again.err) == (0, f"No controller is running in {tmp_path / 'home'}.\n")


def test_down_in_spite_of_a_mistake_in_the_settings(
    corral: Corral, tmp_path: Path, pretender: subprocess.Popen[bytes]
) -> None:
    card(tmp_path / "home", pretender.pid, time.time() + 1)
    (tmp_path / "home" / "corral.yaml").write_text("prot: 1")
    done = corral("down")
    assert (done.code, done.out) == (0, "The controller is down.\n")
    assert "prot" in done.err
    assert pretender.wait(5) == 0


def test_down_says_what_it_waits_for(
    corral: Corral, tmp_path: Path, pretender: subprocess.Popen[bytes]
) -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "ok", "running": 3, "running_here": 2}')

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}"
        card(tmp_path / "home", pretender.pid, time.time() + 1, http=url)
        here, elsewhere = corral("down").err.splitlines()
        assert here == "2 running attempts get up to 10 s; --now to skip."
        assert elsewhere.startswith("1 on other machines goes on")
        web.shutdown()
    assert pretender.wait(5) == 0


def test_down_spares_strangers(
    corral: Corral, tmp_path: Path, pretender: subprocess.Popen[bytes]
) -> None:
    """The pid was written before this process began: somebody else's by now."""
    card(tmp_path / "home", pretender.pid, time.time() - 3600)
    assert corral("down", "--json").json == {"stopped": False}
    assert pretender.poll() is None
    pretender.send_signal(signal.SIGTERM)
    pretender.wait(5)


def test_version_and_help(corral: Corral) -> None:
    assert corral("--version").out == f"corral {__version__}\n"
    assert "Commands:" in corral("--help").out
    assert corral("nonsense").code == 2
    assert corral("run").code == 2


def _loaded(program: str, *modules: str) -> list[str]:
    """Which of these are loaded once the program has run."""
    found = f"[name for name in {modules} if name in sys.modules]"
    asked = f"import json, sys; {program}; print(json.dumps({found}))"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=os.environ
    )
    loaded: list[str] = json.loads(done.stdout)
    return loaded


def test_help_loads_little() -> None:
    program = "from corral.cli.main import build; build()"
    assert _loaded(program, "grpc", "rich.table", "msgspec", "corral.server") == []


def test_a_command_loads_itself_alone() -> None:
    others = ("corral.cli.images.batch", "corral.cli.workers.join", "corral.cli.jobs.show")
    assert _loaded("from corral.cli.main import build; build('put')", *others) == []
    assert _loaded("from corral.cli.main import build; build('nonsense')", *others) == [*others]


def test_a_controller_and_an_agent_start_without_rich() -> None:
    assert _loaded("import corral.server, corral.agent.main", "rich") == []
    assert _loaded("import corral.server, rich.table", "rich.table") == ["rich.table"]
