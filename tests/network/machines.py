"""A controller and workers, each on a machine of its own in a `wires.Network`, with a wall clock
that can be moved."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

import corral
from corral.agent.runners.process_tree import marked
from corral.core.errors import Unavailable
from corral.home import read_json
from corral.joining.invitation import parse
from tests import debian
from tests.crash.test_full_disk import SmallDisk
from tests.eventually import PATIENCE_S, eventually
from tests.live import CORRAL, LiveController
from tests.network.meddler import Meddler
from tests.network.wires import Network

DISK_MB = 128

SETTINGS = {
    "CORRAL_HEARTBEAT_S": "0.3",
    "CORRAL_CANCEL_GRACE_S": "0.5",
    "CORRAL_SHUTDOWN_GRACE_S": "1",
    "CORRAL_BACKOFF_S": "0.05",
    "CORRAL_MAX_LOSSES": "100",
}
"""Short times: a test of one takes that long."""
GRACE_S = 8.0
"""An agent that is started again at once is back within it, also on a busy machine."""


def no_clock() -> str:
    """Why clocks cannot be moved here, or nothing."""
    return debian.missing("faketime", "faketime")


def forget_clocks() -> None:
    """A killed process leaves its moved clock in shared memory, where the next one of that number
    would stumble over it."""
    for left in Path("/dev/shm").glob("*faketime_s*_*"):
        if not psutil.pid_exists(int(left.name.rpartition("_")[2])):
            left.unlink(missing_ok=True)


class Clock:
    """The wall clock of one process and all it starts. What only measures time is left alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Moves it to so many seconds ahead of ours."""
        incoming = self._file.with_suffix(".new")
        incoming.write_text(f"{ahead_s:+d}\n")
        incoming.replace(self._file)

    @property
    def environ(self) -> dict[str, str]:
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            # Otherwise threads that wait for a moment wait for a second.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "PYTHONPATH": str(Path(__file__).with_name("clocked")),
        }


class Worker:
    """A machine that joins by `corral worker join`, as often as it is started."""

    def __init__(self, name: str, place: Path, prefix: Sequence[str], yard: Path) -> None:
        self.name, self.home = name, place / name
        self._prefix = prefix
        self.home.mkdir()
        self.clock = Clock(place / f"{name}.clock")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
        self.environ = {
            **kept,
            **self.clock.environ,
            "CORRAL_HOME": str(self.home),
            "CORRAL_WORKER_WRITE_PATHS": f"[{yard}]",
            "CORRAL_WORKER_CPUS": "2",
            "CORRAL_SHUTDOWN_GRACE_S": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.invitation = ""

    def start(self) -> None:
        with (self.home / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *self._prefix,
                    CORRAL,
                    "worker",
                    "join",
                    "--foreground",
                    self.invitation,
                    "--name",
                    self.name,
                ],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_if_ended(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()

    @property
    def known_as(self) -> str:
        """What the controller calls it: where an enrolment was cut short, its name is taken."""
        return str(read_json(self.home / "worker" / "agent.json").get("name", ""))

    @property
    def said(self) -> str:
        return (self.home / "out").read_text("utf-8", "replace")

    def agent(self) -> psutil.Process | None:
        """The process that `join` started."""
        if self.process is None or self.process.poll() is not None:
            return None
        try:
            children = psutil.Process(self.process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return next((child for child in children if child.is_running()), None)

    def signal(self, number: signal.Signals) -> None:
        agent = self.agent()
        if agent is not None:
            agent.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the agent, and of who started it."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            eventually(lambda: self.agent() or process.poll() is not None, "an agent")
            self.signal(signal.SIGTERM)
            self.ended()

    def job_processes(self) -> list[psutil.Process]:
        return marked(str(self.home / "worker"))

    def strays(self) -> list[psutil.Process]:
        """Job processes that no living agent looks after."""
        agent = self.agent()
        known = {one.pid for one in agent.children(recursive=True)} if agent else set()
        return [one for one in self.job_processes() if one.pid not in known]


class Cluster:
    """One controller beyond loopback, with TLS, and workers that joined it."""

    def __init__(
        self,
        network: Network,
        place: Path,
        workers: Sequence[str],
        *,
        own_worker: bool = False,
        grace_s: float = GRACE_S,
        disk: Callable[[Path, int], SmallDisk] = SmallDisk,
    ) -> None:
        self.network = network
        self.yard = place / "yard"
        self.yard.mkdir()
        self.clock = Clock(place / "controller.clock")
        self.controller = LiveController(
            place / "controller",
            *("--host", network.address("controller"), "--port", "8700", "--grpc-port", "50051"),
            environ={
                **SETTINGS,
                "CORRAL_GRACE_S": str(grace_s),
                **self.clock.environ,
                "CORRAL_WORKER_ENABLED": str(own_worker).lower(),
                "CORRAL_WORKER_WRITE_PATHS": f"[{self.yard}]",
            },
            prefix=network.inside("controller"),
        )
        self.workers = {
            name: Worker(name, place, network.inside(name), self.yard) for name in workers
        }
        small = self.workers["w2"].home
        self.controller.home.mkdir()
        self.disks = {
            "controller": disk(self.controller.home, DISK_MB),
            "w2": disk(small, DISK_MB),
        }
        """Homes on disks of their own: they can be filled, and some can lose power."""
        self.meddler: Meddler | None = None
        """Stands between the controller and the last worker, and does nothing until told to."""

    def start(self) -> None:
        self.controller.start()
        address = (self.network.address("controller"), 8700)
        self.meddler = Meddler(self.network.host, address, self.controller.home / "tls")
        with self.client() as client:
            direct = parse(client.admin.invite_worker())
        host, port = self.meddler.address
        for worker in self.workers.values():
            worker.invitation = direct.text()
        worker.invitation = direct._replace(host=host, port=port).text()
        for worker in self.workers.values():
            worker.start()
        eventually(self.all_connected, "all workers are connected")

    def mend(self) -> None:
        """Whatever a test did or left undone: everybody is up, connected and on time."""
        for worker in self.workers.values():
            self.network.heal(worker.name)
            worker.signal(signal.SIGCONT)
            worker.clock.set(0)
        self.clock.set(0)
        process = self.controller.process
        if process is None or process.poll() is not None:
            self.controller.start()

        def all_up() -> bool:
            for worker in self.workers.values():
                worker.start_if_ended()  # one may hear only now that it was revoked
            return self.all_connected()

        eventually(all_up, "all workers are up and connected")
        with self.client() as client:
            for worker in self.workers.values():
                client.admin.change_worker(worker.known_as, draining=False)

    def client(self) -> corral.Client:
        return corral.Client(home=self.controller.home)

    def connected(self) -> set[str]:
        with self.client() as client, contextlib.suppress(Unavailable):
            return {one.name for one in client.workers() if one.connected}
        return set()  # a client that meets nobody the first time has no patience

    def all_connected(self) -> bool:
        return self.connected() >= {worker.known_as for worker in self.workers.values()}

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        process = self.controller.process
        if process is not None and process.poll() is None:
            self.controller.stop()
        if self.meddler is not None:
            self.meddler.close()
        for disk in self.disks.values():
            disk.close()
        forget_clocks()
