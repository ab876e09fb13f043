"""docs/sdk.md for a machine that has nothing yet: real curl, real pip in a new environment, no
package index, a generated gRPC client; all over TLS. Its programs run over TLS too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.joining import trust
from tests.debian import needs
from tests.docs import shell_page
from tests.docs.pages import Block, blocks
from tests.live import CORRAL, LiveController

PROGRAMS = [block for block in blocks("docs/sdk.md") if block.kind == "python"]
OURS = ("CORRAL_", "PIP_", "REQUESTS_", "CURL_", "SSL_")
"""What this machine has set, and a stranger's has not."""
PROGRAM = "import corral; print(corral.Client().run(lambda: 6 * 7, output=None))"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    environ = {"CORRAL_TLS": "always", "CORRAL_ADVERTISE": "127.0.0.1"}
    with LiveController(tmp_path_factory.mktemp("tls"), environ=environ) as made:
        yield made


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"sdk.md:{block.line}")
def test_block_runs(block: Block, controller: LiveController, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=tmp_path,
        env=controller.environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if block.output is not None:
        assert done.stdout.strip() == block.output.strip()


@pytest.mark.timeout(300)
def test_a_stranger_installs_the_sdk_and_generates_a_client(
    controller: LiveController, tmp_path: Path
) -> None:
    needs("curl", "curl")
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pip").symlink_to(place / "bin" / "pip")
    with corral.Client(home=controller.home) as client:
        token, _ = client.admin.create_token("laptop", "submit")
        invitation = client.admin.invite_client("anna", "submit")
    certificate = Path(str(controller.card["certificate"]))
    environ = {
        **{key: value for key, value in os.environ.items() if not key.startswith(OURS)},
        "HOME": str(tmp_path),
        "PATH": f"{tools}:{Path(CORRAL).parent}:{os.environ['PATH']}",
        "CONTROLLER": controller.url.removeprefix("https://"),
        "GRPC": controller.address,
        "PIN": f"sha256//{trust.public_key_pin(certificate.read_text())}",
        "TOKEN": token,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_COMPILE": "0",  # which is most of the time
    }
    shell_page.run("docs/sdk.md", tmp_path, environ)
    environ |= {"CORRAL_HOME": str(tmp_path / "own"), "CORRAL_INVITATION": invitation}
    own = place / "bin"
    assert subprocess.run([own / "uv", "--version"], capture_output=True).returncode == 0
    for command in ([own / "corral", "login"], [own / "python", "-c", PROGRAM]):
        done = subprocess.run(
            [str(word) for word in command],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "42"
