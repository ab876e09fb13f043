"""What a job tries to look into: the agent, the controller, other jobs, and files of the home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral import job
from corral.runtime.sandbox import rules
from tests.e2e.spying import look
from tests.live import LiveController

VALUE = "hf_theValueThatMustStayWhereItIs"
ORDINARY = 54_321
"""A user that owns nothing here."""
needs_landlock = pytest.mark.skipif(
    rules.landlock_version() < 1, reason="this kernel has no Landlock"
)


def _becoming_ordinary(kept: Path) -> list[str]:
    """Words before a command that is run as an ordinary user then: root cannot show what such a
    one may not do. Where Python lies in root's own home, it is shown to that user in a mount
    namespace of its own."""
    become = f'exec setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups "$@"'
    base = Path(sys.base_prefix).resolve()
    closed = [path for path in base.parents if not path.stat().st_mode & 0o001]
    if closed:
        become = (
            f"mkdir {kept} && mount --bind {base} {kept} && "
            f"mount -t tmpfs -o mode=755 none {closed[-1]} && mkdir -p {base} && "
            f"mount --bind {kept} {base} && {become}"
        )
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", become, "sh"]
    tried = subprocess.run([*words, sys.executable, "-c", "1"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"nobody can become an ordinary user here: {tried.stderr.strip()[-200:]}")
    if closed:
        kept.rmdir()
    return words


class Place:
    def __init__(self, live: LiveController, client: corral.Client) -> None:
        self.live, self.client = live, client

    def process(self, *words: str) -> psutil.Process:
        """The living process of this home whose command line has these words."""
        home = str(self.live.home)
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if any(home in word for word in line) and all(word in line for word in words):
                return process
        raise AssertionError(f"no process with {words}")

    @property
    def controller(self) -> int:
        assert self.live.process is not None
        return self.live.process.pid

    @property
    def agent(self) -> int:
        return self.process("corral.agent.main").pid


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("isolated", "whoever this is"), marks=pytest.mark.long),
        pytest.param(("not isolated", "whoever this is"), marks=pytest.mark.long),
        ("isolated", "an ordinary user"),
        ("not isolated", "an ordinary user"),
    ],
    ids=" as ".join,
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    confined, who = request.param
    # Not below pytest's own folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="corral-closed-"))
    home = folder / "home"
    home.mkdir(mode=0o700)
    isolate = str(confined == "isolated").lower()
    (home / "corral.yaml").write_text(
        f"shutdown_grace_s: 1\nworker:\n  cpus: 4\n  isolate: {isolate}\n"
    )
    prefix: list[str] = []
    if who == "an ordinary user" and os.getuid() == 0:
        prefix = _becoming_ordinary(folder / "python")
        for path in (folder, home, home / "corral.yaml"):
            os.chown(path, ORDINARY, ORDINARY)
    environ = {"HOME": str(folder), "SHELL_SECRET": VALUE}
    try:
        with (
            LiveController(home, environ=environ, prefix=prefix) as live,
            corral.Client(live.address, live.token) as client,
        ):
            client.secrets.set("HF_TOKEN", VALUE)
            yield Place(live, client)
    finally:
        shutil.rmtree(folder)


def test_agent_controller_and_supervisor_are_closed(place: Place) -> None:
    pids = {"agent": place.agent, "controller": place.controller}
    assert place.client.run(look, (pids, [])) == {}
    assert place.client.run(lambda: look({"supervisor": os.getppid()}, [])) == {}
    # The same function finds all of it in a process that is open: its own.
    mine = place.client.run(lambda: sorted(look({"me": os.getpid()}, [])))
    assert mine == ["descriptors of me", "environ of me", "memory of me"]


def test_no_variable_of_the_shell_reaches_agent_or_jobs(place: Place) -> None:
    assert place.client.run(lambda: os.environ.get("SHELL_SECRET", "")) == ""
    assert VALUE.encode() not in Path(f"/proc/{place.agent}/environ").read_bytes()


@needs_landlock
def test_other_jobs_and_the_home_are_out_of_reach(place: Place) -> None:
    if not place.client.workers()[0].enforced["files"]:
        # Nothing is claimed, so nothing is promised; see docs/secrets.md.
        assert "isolate: false" in (place.live.home / "corral.yaml").read_text()
        return

    def hold() -> None:
        child = subprocess.Popen(["sleep", "600"])  # has the secret in its environment
        job.metric(me=os.getpid(), child=child.pid)
        child.wait()

    other = place.client.submit(hold, secrets=["HF_TOKEN"])
    progress = next(event for event in other.events() if getattr(event, "metrics", None))
    pids = {name: int(pid) for name, pid in progress.metrics.items()}  # type: ignore[attr-defined]
    home = place.live.home
    files = [
        str(home / name)
        for name in ("secrets", "token", "transfer.key", "worker/agent.json", "journal/corral.db")
    ]
    assert all(Path(path).exists() for path in files)
    try:
        assert place.client.run(look, (pids, files)) == {}
        # Not even with the same secrets.
        assert place.client.run(look, (pids, files), secrets=["HF_TOKEN"]) == {}
    finally:
        other.cancel()


def test_the_tools_of_a_job_still_see_the_job(place: Place) -> None:
    """What was taken away from a job is others, not itself."""

    def tools() -> tuple[int, bool]:
        import ctypes

        child = subprocess.Popen(["sleep", "600"])
        try:
            traced = ctypes.CDLL(None).ptrace(16, child.pid, 0, 0)  # PTRACE_ATTACH
            os.waitpid(child.pid, 0)
            ctypes.CDLL(None).ptrace(17, child.pid, 0, 0)
            return traced, bool(os.listdir("/proc/self/fd"))
        finally:
            child.kill()
            child.wait()

    assert place.client.run(tools, fresh=True) == (0, True)
