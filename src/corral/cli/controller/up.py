"""The controller of this home: up, down, status, config, repair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.home import Home, read_json
from corral.locks import is_locked

START_S = 120.0
"""How long a start may take while its process lives: it may have a long journal to read."""
WORKER_S = 15.0
"""How long this machine's worker is waited for then, as the controller does with a submission."""


def up(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP; 0 takes a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC; 0 takes a free one.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="A way to reach workers; may be given several times.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running and return once it is healthy.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Starts the controller here, with a worker on this machine."""
    from corral import settings, variables

    flags = {"host": host, "port": port, "grpc_port": grpc_port, "engines": engine or None}
    config = settings.load(flags=flags)
    _tell_of_login(config.home)
    if detach:
        alone = {"--host": host, "--port": port, "--grpc-port": grpc_port}
        given = [f"{flag}={value}" for flag, value in alone.items() if value is not None]
        given += [f"--engine={name}" for name in engine or ()]
        worker = config.settings.worker.enabled
        raise typer.Exit(_start_detached(config.home, given, worker=worker, as_json=as_json))
    variables.quiet_grpc()  # before gRPC is loaded, which reads it then
    from corral.server import serve

    raise typer.Exit(serve(config))


def _tell_of_login(home: Path) -> None:
    address = read_json(Home(home).login).get("address")
    if address:
        output.say(
            f"This home is logged in to {address}: commands here go on talking to that controller, "
            "not to the one that starts now. `corral logout` changes that, and so does another "
            "CORRAL_HOME for this one.",
            style="yellow",
        )


def _start_detached(home: Path, given: list[str], *, worker: bool, as_json: bool) -> int:
    log = home / "log" / "controller.log"
    # Private from the first moment on: the token will lie here.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.parent.mkdir(mode=0o700, exist_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "corral.cli.main", "up", *given],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=home,
        )
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        card = read_json(Home(home).controller)
        if card.get("pid") == process.pid and health_of(card):
            if worker:
                _await_worker(process, card)
            if as_json:
                output.show_json(card)
            else:
                output.show(f"The controller is up (pid {process.pid}).")
                output.show_pairs(_places(home, card))
                for line in _said(log, begin):
                    if line.startswith("corral: "):
                        output.say(line.removeprefix("corral: "), style="yellow")
                if card.get("certificate"):
                    output.say("`corral invite` prints the command that adds another machine.")
            return 0
        time.sleep(output.POLL_S)
    if process.poll() is None:
        output.say(f"The controller is not healthy after {START_S:g} s; see {log}.", style="red")
        return 1
    said = _said(log, begin)
    sentence = said[-1].removeprefix("corral: ") if said else "The controller ended at once."
    output.say(sentence if said else f"{sentence} See {log}.", style="red")
    return process.returncode or 1


def _await_worker(process: subprocess.Popen[bytes], card: dict[str, Any]) -> None:
    """For a moment: whoever submits right behind this is not told that nobody can run it."""
    output.waited(lambda: process.poll() is not None or health_of(card).get("workers"), WORKER_S)


def _said(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(begin)
        return file.read().decode("utf-8", "replace").strip().splitlines()


def down(
    now: Annotated[
        bool, typer.Option("--now", help="Give running attempts no time to end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stops the controller of this home and waits until it is gone."""
    import psutil

    from corral import settings

    home = settings.default_home()
    process = controller_of(home)
    if process is None:
        if as_json:
            output.show_json({"stopped": False})
        else:
            output.say(f"No controller is running in {home}.")
        return
    grace_s = _grace_s()
    health = {} if now or as_json else health_of(read_json(Home(home).controller))
    here = int(health.get("running_here", 0))
    elsewhere = int(health.get("running", 0)) - here
    if here:
        attempts = "running attempt gets" if here == 1 else "running attempts get"
        output.say(f"{here} {attempts} up to {grace_s:g} s; --now to skip.")
    if elsewhere > 0:
        output.say(
            f"{elsewhere} on other machines go{'es' * (elsewhere == 1)} on; what comes of it is "
            "told when the controller is up again."
        )
    try:
        process.send_signal(signal.SIGTERM)
        if now:
            process.send_signal(signal.SIGTERM)
        patience_s = 10.0 if now else grace_s + 30.0
        if not with_spinner("Stopping the controller …", lambda: gone(process), patience_s):
            # The journal is made for this: nothing acknowledged is lost.
            process.kill()
            with_spinner("Ending the controller …", lambda: gone(process), 10.0)
    except psutil.NoSuchProcess:
        pass
    output.answer({"stopped": True, "pid": process.pid}, "The controller is down.", as_json)


def _grace_s() -> float:
    """Also where a mistake in corral.yaml was made since the start: that keeps nobody running."""
    from corral import settings
    from corral.core.errors import InvalidSettings

    try:
        return settings.load().settings.shutdown_grace_s
    except InvalidSettings as error:
        output.say(str(error), style="yellow")
        return settings.Settings().shutdown_grace_s


def with_spinner(message: str, done: Callable[[], bool], patience_s: float) -> bool:
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(message)):
        return output.waited(done, patience_s)


def controller_of(home: Path) -> Any:
    """The process that the card names, if it still is the one that wrote it: pids are reused."""
    import psutil

    card = read_json(Home(home).controller)
    try:
        process = psutil.Process(int(card["pid"]))
        words = " ".join(process.cmdline())
        ours = "corral" in words and process.create_time() <= float(card["started_at"]) + 1.0
    except (KeyError, ValueError, TypeError, psutil.Error):
        return None
    return process if ours and not gone(process) else None


def gone(process: Any) -> bool:
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def status(as_json: AsJson = False) -> None:
    """Whether the controller is up, where, and how much it has to do."""
    from corral import settings

    home = settings.default_home()
    with client_of_this_home() as client:
        health = client.health()
        queue = client.admin.queue()
        address = client.address
    card = read_json(Home(home).controller)
    if card.get("grpc") != address:
        card = {"grpc": address}  # found by CORRAL_ADDRESS: not the controller of this home
    log = card.pop("log", str(home / "log" / "controller.log"))
    here = {"home": str(home), "log": log} if "pid" in card else {}
    if as_json:
        from msgspec.structs import asdict

        output.show_json({**card, **here, **asdict(health), "paused": queue.paused})
        return
    output.show_pairs(
        [
            ("status", "up" if health.status == "ok" else health.status),
            ("reason", health.reason),
            ("version", health.version),
            ("pid", str(card.get("pid", ""))),
            *_places(home, card),
            ("log", here.get("log", "")),
            ("up for", output.span(max(time.time() - health.started_at, 0))),
            ("workers", str(health.workers)),
            ("queue", output.paused(queue) if queue.paused else ""),
            ("queued", str(health.queued)),
            ("running", str(health.running)),
        ]
    )


def _places(home: Path, card: dict[str, Any]) -> list[tuple[str, str]]:
    found = [("http", str(card.get("http", ""))), ("grpc", str(card.get("grpc", "")))]
    elsewhere = card.get("elsewhere") or {}
    if elsewhere:
        found.append(("elsewhere", f"{elsewhere.get('http')}, gRPC {elsewhere.get('grpc')}"))
    if card.get("certificate"):
        found += [("certificate", card["certificate"]), ("pin", _pin(card["certificate"]))]
    return [*found, ("home", str(home))] if "pid" in card else found


def _pin(certificate: str) -> str:
    """Of its key, as curl takes it."""
    from corral.joining import trust

    try:
        return f"sha256//{trust.public_key_pin(Path(certificate).read_text(encoding='ascii'))}"
    except (OSError, ValueError):
        return ""


def health_of(card: dict[str, Any]) -> dict[str, Any]:
    """What a healthy controller says of itself; empty where there is none."""
    url = str(card.get("http"))
    if not url.startswith(("http://", "https://")):
        return {}
    from corral.joining import trust

    try:
        health = json.loads(trust.health_of(url, card.get("certificate"), timeout=2))
    except (OSError, ValueError):
        return {}
    return health if isinstance(health, dict) else {}


def config(as_json: AsJson = False) -> None:
    """The effective settings and where each came from."""
    from corral import settings

    found = settings.load()
    rows = [
        (key, settings.shown(found.settings, key), source) for key, source in found.sources.items()
    ]
    home = Home(found.home)
    running = read_json(home.settings) if is_locked(home.lock) else {}
    old = {key: running[key][0] for key, *now in rows if _waits(now, running.get(key))}
    if as_json:
        listed = {
            key: {"value": value, "source": source, **({"running": old[key]} if key in old else {})}
            for key, value, source in rows
        }
        output.show_json({"home": str(found.home), "settings": listed})
        return
    output.show_table(
        ("SETTING", "VALUE", "SOURCE"),
        [(key, json.dumps(value, ensure_ascii=False), source) for key, value, source in rows],
    )
    output.show(f"\nhome: {found.home}")
    if old:
        output.say(
            "The controller that runs was started with other values. Stop it and start it again, "
            "`corral down` and `corral up`, and these hold:",
            style="yellow",
        )
        for key, value in old.items():
            output.say(f"  {key} (now {json.dumps(value, ensure_ascii=False)})", style="yellow")


def _waits(now: list[Any], running: list[Any] | None) -> bool:
    """Whether the file says something else than when the controller started. What a variable or a
    flag says, there or here, is no word of the file."""
    if running is None or any(
        str(said[1]).startswith(("CORRAL_", "--")) for said in (now, running)
    ):
        return False
    return bool(json.loads(json.dumps(now[0])) != running[0])


def repair(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """After a damaged journal was refused: keeps the damaged files and goes on with the rest."""
    from corral import settings
    from corral.controller.recovery.repair import repair as mend

    report = mend(settings.default_home(), yes=yes)
    output.answer({"lines": report.lines}, "\n".join(report.lines), as_json)
