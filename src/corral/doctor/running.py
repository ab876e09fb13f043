"""Checks of the controller and its workers: whether it is up, and what keeps work from going on."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral import __version__, settings
from corral.contract.views import WorkerView
from corral.core.errors import CorralError, Forbidden, Unauthorized
from corral.doctor.findings import Finding, fail, named, ok, warn
from corral.home import Home, read_json
from corral.joining import trust
from corral.sdk.client import Client
from corral.sdk.transport.connection import locate

ASKED = 20
"""Waiting jobs that are asked why."""
SILENT_BEATS = 3


class ControllerChecks:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._card = read_json(Home(home).controller)
        self._login = str(read_json(Home(home).login).get("address", ""))
        self._elsewhere = settings.client_address() or self._login
        """The controller that commands in this home talk to, where that is not its own."""
        self._config: settings.Settings = settings.Settings()
        with contextlib.suppress(CorralError):
            self._config = settings.load(home).settings

    def controller(self) -> Iterator[Finding]:
        if self._elsewhere and _alive(self._card):
            yield warn(
                f"One runs here (pid {self._card.get('pid')}), but commands in this home talk to "
                f"{self._elsewhere}.",
                "`corral logout` changes that."
                if self._elsewhere == self._login
                else "Unset CORRAL_ADDRESS to change that.",
            )
        elif self._elsewhere:
            by = "logged in to" if self._elsewhere == self._login else "CORRAL_ADDRESS is"
            yield ok(f"{by} {self._elsewhere}")
        elif not _alive(self._card):
            if self._card:
                yield warn(
                    f"It ended without a goodbye (pid {self._card.get('pid')}).",
                    "`corral up` starts it again; no accepted job is lost.",
                )
            else:
                yield warn("It is not running.", "`corral up` starts it.")
            yield from self.ports()
            return
        yield from self._doors()

    def ports(self) -> Iterator[Finding]:
        for name, port in (("port", self._config.port), ("grpc_port", self._config.grpc_port)):
            if not port:
                continue
            host = self._config.host
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with contextlib.closing(socket.socket(family)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as error:
                    yield fail(
                        f"{host}:{port} cannot be used ({error.strerror}){_holder(port)}.",
                        f"Stop what has it, or set {name} to another one.",
                        check=name,
                    )
                else:
                    yield ok(f"{host}:{port} is free", check=name)

    # --- a controller that is there ---

    def _doors(self) -> Iterator[Finding]:
        door = locate(home=self._home)
        url = str(self._card.get("http", ""))
        if url and not self._elsewhere:
            yield from named("http", [_http(url, self._card.get("certificate"))])
        try:
            with Client(home=self._home) as client:
                began = time.perf_counter()
                health = client.health()
                took = (time.perf_counter() - began) * 1000
                yield ok(f"{door.address} answers in {took:.0f} ms: {health.status}", check="grpc")
                yield from _condition(health.status, health.reason)
                if health.version == __version__:
                    yield ok(f"the controller has {health.version} too", check="versions")
                else:
                    yield warn(
                        f"This is Corral {__version__}, the controller is {health.version}.",
                        "Install the same on both, then `corral down` and `corral up`.",
                        check="versions",
                    )
                yield from self._work(client)
        except Unauthorized as error:
            again = "Ask for a new string (`corral invite --client NAME`) and `corral login` again."
            yield fail(
                error.message,
                again if self._login else "Set CORRAL_HOME or CORRAL_TOKEN.",
                check="grpc",
            )
        except CorralError as error:
            away = (
                "See whether that machine is on and `corral up` there; `corral logout` forgets it."
            )
            here = "See the controller's log; `corral status` names it."
            yield fail(error.message, away if self._login else here, check="grpc")

    def _work(self, client: Client) -> Iterator[Finding]:
        workers = client.workers()
        yield from named("workers", self._workers(workers))
        yield from named("jobs", _stuck(client, workers))
        yield from named("queue", [_paused(client)])
        if not self._elsewhere:
            yield from self._webhooks(client)

    def _workers(self, workers: Sequence[WorkerView]) -> Iterator[Finding]:
        if not workers:
            yield warn(
                "The controller knows no worker.",
                "Wait a moment, or see worker.enabled in the settings.",
            )
        for worker in workers:
            yield from self._worker(worker)

    def _webhooks(self, client: Client) -> Iterator[Finding]:
        """What is signed with a secret that is not there is not sent at all."""
        named = {hook.secret for hook in self._config.notify} | {self._config.notify_secret}
        try:
            there = {secret.name for secret in client.secrets.list()}
        except Forbidden:
            return  # a token for less than an admin, which may not know
        for name in sorted(named - {""} - there):
            yield warn(
                f"Webhooks are signed with the secret {name}, which is not set: they are not told.",
                f"`corral secret set {name}`.",
                check="notify",
            )

    def _worker(self, worker: WorkerView) -> Iterator[Finding]:
        silence = time.time() - worker.seen_at
        if worker.left:
            yield ok(f"{worker.name} was stopped {silence:.0f} s ago")
        elif not worker.connected:
            yield warn(
                f"{worker.name} is away since {silence:.0f} s.",
                "Start it again; its jobs wait or go elsewhere.",
            )
        elif silence > SILENT_BEATS * self._config.heartbeat_s + 1:
            yield warn(
                f"{worker.name} is connected but silent for {silence:.0f} s.",
                "See whether its machine is overloaded or asleep.",
            )
        elif worker.version and worker.version != __version__:
            yield warn(
                f"Worker {worker.name} runs Corral {worker.version}, this is {__version__}.",
                "Install the same on both and start it again.",
                check="versions",
            )
        else:
            gpus = f", {len(worker.gpus)} GPUs" if worker.gpus else ""
            yield ok(f"{worker.name}: {worker.cpus:g} processors{gpus}, heard just now")
        for server in worker.servers if worker.connected else ():
            if server.trouble:
                yield warn(
                    f"{worker.name}: {server.trouble}",
                    f"Start the {server.kind}, or correct its entry in `worker.backends` there.",
                    check="images",
                )


def _condition(status: str, reason: str) -> Iterator[Finding]:
    if status == "full":
        said = f"No new work is accepted or started: {reason}"
        yield fail(said, "Free some space, or lower retention.* in corral.yaml.", check="room")
    if status == "damaged":
        next_ = "`corral down`, then restore a backup, or run `corral repair`."
        yield fail(reason, next_, check="journal")
    if status == "degraded":
        next_ = "Its jobs wait; look after its platform, and they go on by themselves."
        yield warn(reason, next_, check="engines")


def _alive(card: dict[str, object]) -> bool:
    import psutil

    pid = card.get("pid")
    return isinstance(pid, int) and pid > 0 and psutil.pid_exists(pid)


def _holder(port: int) -> str:
    """Who has a port, where the system tells us."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("inet"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port:
                if connection.pid:
                    return (
                        f"; {psutil.Process(connection.pid).name()}, pid {connection.pid}, has it"
                    )
                return "; somebody else's process has it"
    return ""


def _http(url: str, certificate: object) -> Finding:
    try:
        trust.health_of(url, certificate, timeout=5)
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", "replace")[:200]
        return warn(f"{url}/health answers {error.code}: {said}", "See what it says there.")
    except (OSError, ValueError) as error:
        return fail(
            f"{url} does not answer ({error}), so workers cannot reach it either.",
            "See the controller's log; `corral down` and `corral up`.",
        )
    return ok(f"{url} answers")


def _paused(client: Client) -> Finding:
    view = client.admin.queue()
    if not view.paused:
        return ok("not paused")
    by = f" by {view.paused_by}" if view.paused_by else ""
    said = f"The queue is paused{by}: nothing new is started."
    return warn(said, "`corral queue resume` goes on.")


def _stuck(client: Client, workers: Sequence[WorkerView]) -> Iterator[Finding]:
    """Jobs that wait although workers have nothing to do: those would wait for ever."""
    if any(worker.running or worker.waiting for worker in workers if worker.connected):
        return
    waiting = client.jobs(states=["queued"], limit=ASKED)
    stuck = []
    for view in waiting:
        why = client.job(view.job_id).why()
        if why.workers and all(one.reason for one in why.workers):
            reasons = "; ".join(f"{one.worker}: {one.reason}" for one in why.workers[:3])
            stuck.append(f"{view.job_id} ({reasons})")
    if stuck:
        more = "" if len(stuck) == 1 else f", and {len(stuck) - 1} more"
        yield warn(
            f"No worker here can run job {stuck[0]}{more}.",
            "`corral why JOB` says more; add such a worker, or `corral cancel` it.",
        )
    elif workers:
        yield ok("none waits in vain")
