"""What a worker writes once and trusts later, as a story that power cuts interrupt everywhere: its
certificate, kept results, assets, environments and the kit. Whatever is left, an agent that starts
on it works; and what was said to be done is not done again."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from corral.agent.environments import manifest
from corral.agent.environments.build_steps import BuildSteps
from corral.agent.environments.builder import Environments
from corral.agent.environments.manifest import SMALL_BYTES
from corral.agent.files.assets import AssetCache
from corral.agent.outbox import KeptResults
from corral.agent.runners.cgroups import Cgroups
from corral.core.job import Input
from corral.home import make_folder
from corral.joining import trust
from corral.protocol.messages import JobCompleted
from corral.runtime.environments.kit import contents
from corral.runtime.files.downloads import Ticket
from corral.shared_root import SharedRoot
from corral.variables import build_environment
from tests.agent.asset_server import serving
from tests.agent.test_environments import make_wheel
from tests.crash.scenario import quiet

DATA = bytes(range(256)) * 1000
WANTED = Input("data", hashlib.sha256(DATA).hexdigest(), len(DATA))
ENDED = JobCompleted("job", 1, at=1.0, seconds=1.0, digest="")
SIZES = {"small": 10, "large": SMALL_BYTES + 1}


def environments(home: Path) -> Environments:
    # The cache is on the same disk: what uv left there half written is no excuse.
    environ = {**build_environment(), "UV_CACHE_DIR": str(home / "cache")}
    made = Environments(
        home / "environments",
        BuildSteps(environ, home / "kit", Cgroups(home)),
        limit_gb=1.0,
        keep_s=3600.0,
        system_site_packages=False,
        in_use=set,
    )
    made.clear_leftovers()
    return made


def wheel(home: Path, name: str) -> str:
    """Beside the disk that loses power."""
    folder = home.parent.with_name(f"{home.parent.name}-wheels")
    folder.mkdir(exist_ok=True)
    return make_wheel(folder, name, size=SIZES[name])


async def fetch(home: Path) -> tuple[bytes, int]:
    """The asset, and how often somebody had to be asked for it."""
    assets = AssetCache(home / "assets", limit_gb=1.0, root=SharedRoot(""), in_use=set)
    assets.clear_leftovers()
    with serving(DATA) as server:
        ticket = Ticket(server.url, "", "job", 1, "token")
        path = await assets.get(WANTED, ticket, lambda: True, lambda have, size: None)
        await assets.close()
        return Path(path).read_bytes(), len(server.asked)


async def play(home: Path) -> None:
    make_folder(home)
    certificate, _ = trust.kept_certificate(home / "tls")
    _say(f"CERTIFICATE {trust.fingerprint(certificate.read_text())}")
    KeptResults(home / "kept", "w1").add([ENDED])
    _say("RESULT")
    await fetch(home)
    _say("ASSET")
    made = environments(home)
    for name in SIZES:
        await made.get(made.spec("", (wheel(home, name),)))
        _say(f"ENVIRONMENT {name}")
    manifest.assemble_kit(home / "kit")
    _say("KIT")


def run(home: Path) -> None:
    quiet()
    asyncio.run(play(home))


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def check(home: Path, said: Sequence[str]) -> None:
    home.mkdir(exist_ok=True)
    done = {line.partition(" ")[0]: line.partition(" ")[2] for line in said}
    certificate, _ = trust.kept_certificate(home / "tls")
    if "CERTIFICATE" in done:
        assert trust.fingerprint(certificate.read_text()) == done["CERTIFICATE"], "another one"
    found = KeptResults(home / "kept", "w1").read()
    assert found == [ENDED] if "RESULT" in done else found in ([], [ENDED])
    data, asked = await fetch(home)
    assert data == DATA
    assert not (asked and "ASSET" in done), "it was said to be here"
    made = environments(home)
    for name in SIZES if (home / "environments").exists() else ():
        await _works(made, home, name, kept=f"ENVIRONMENT {name}" in said and name == "large")
    if (home / "kit").exists():
        _is_right(manifest.assemble_kit(home / "kit"))


async def _works(made: Environments, home: Path, name: str, *, kept: bool) -> None:
    spec = made.spec("", (wheel(home, name),))
    place = home / "environments" / spec.digest
    before = place.stat().st_ino if place.exists() else 0
    found = await made.get(spec)
    _succeeds(str(found.python), "-I", "-c", f"import {name}, sys; sys.exit({name}.VALUE != 42)")
    assert not kept or place.stat().st_ino == before, "it was said to be here"


def _is_right(made: Path) -> None:
    _, files = contents()
    for inside, content in files:
        assert (made / inside).read_bytes() == content, inside
    code = "import sys; sys.path.insert(0, sys.argv[1]); import corral.runtime.runner"
    _succeeds(sys.executable, "-I", "-S", "-c", code, str(made))


def _succeeds(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
