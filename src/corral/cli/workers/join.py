"""A machine joins a controller, works for it, and leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import output
from corral.cli.workers.worker import app
from corral.core.errors import Conflict, CorralError, InvalidRequest, Unavailable, from_view

if TYPE_CHECKING:
    from corral.joining.discovery import Found

CONFIRM_S = 600.0
"""How long somebody may take to confirm a code, whatever the other side says."""
STOP_S = 15.0
"""How long a worker may take beyond its grace."""

Foreground = Annotated[
    bool | None,
    typer.Option(
        "--service/--foreground",
        help="As a service of this machine, or until Ctrl-C. Without either: as a service where "
        "systemd or Windows keeps services.",
    ),
]


@app.command()
def join(
    invitation: Annotated[
        str,
        typer.Argument(
            help="The string of `corral invite`, unless CORRAL_INVITATION has it; without it a "
            "controller is looked for."
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="What to call this machine.")] = "",
    as_service: Foreground = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave the worker running and return.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Be a new worker, whatever this machine was before.")
    ] = False,
) -> None:
    """Makes this machine a worker of a controller elsewhere, from now on."""
    from corral import settings
    from corral.home import Home, read_json, write_private_json

    if detach and as_service is not None:
        other = "--service" if as_service else "--foreground"
        raise InvalidRequest(
            f"--detach leaves a process running and returns, {other} does something else with it: "
            "give one of the two."
        )
    invitation = invitation or settings.taken_invitation()
    home = Home(settings.default_home())
    home.worker.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_json(home.agent)
    config = settings.load()
    wished = name
    name = name or config.settings.worker.name or socket.gethostname().split(".")[0]
    if invitation:
        card = _invited(invitation, name, known, again=again)
        if wished and card.get("credential") == known.get("credential") and wished != card["name"]:
            output.say(
                f"It keeps its name: --name is for a machine that is new there. On the controller: "
                f"corral worker rename {card['name']} {wished}"
            )
    else:
        _check_free(known, again=again)
        card = _found(name)
    write_private_json(home.agent, card)
    raise typer.Exit(_begin(home.path, as_service=as_service, detach=detach))


def _invited(invitation: str, name: str, known: dict[str, Any], *, again: bool) -> dict[str, Any]:
    from corral.joining import invitation as invitations
    from corral.joining import trust

    told = invitations.for_worker(invitation)
    pinned = known.get("certificate")
    if pinned and trust.fingerprint(pinned) == told.sha256 and not again:
        output.say(f"This machine is already the worker {known['name']!r} of that controller.")
        return {**known, "url": told.url}
    _check_free(known, again=again)
    pem = trust.fetched(told.host, told.port, told.sha256)
    card = enrol(told.url, told.token, name, pem)
    output.say(f"Enrolled as {card['name']!r} at {told.url}.")
    return {**card, "url": told.url, "certificate": pem}


def _found(name: str) -> dict[str, Any]:
    """The card of a worker of the one controller of the local network."""
    from corral.joining import discovery

    output.say("Looking for a controller on this network …")
    there = discovery.look()
    if not there:
        raise Unavailable(
            "No controller answers on this network. Start one with `corral up --host 0.0.0.0`, or "
            "give the string that `corral invite` prints there."
        )
    if len(there) > 1:
        names = ", ".join(f"{one.name} ({one.host})" for one in there)
        raise Conflict(
            f"There are several controllers here: {names}. Give the string that `corral invite` "
            "prints on yours."
        )
    return paired(there[0], name)


def paired(at: Found, name: str) -> dict[str, Any]:
    """The card of a worker, once both sides showed the same code and the operator said so."""
    from corral.joining import pairing, trust
    from corral.joining.invitation import bracketed

    url = f"https://{bracketed(at.host)}:{at.port}"
    pem = trust.offered(at.host, at.port)
    number = pairing.number()
    asking = {"name": name, "commitment": pairing.commitment(number)}
    asked = _ask("POST", f"{url}/join-requests", pem, asking)
    place = f"{url}/join-requests/{asked['id']}"
    _ask("PUT", place, pem, {"number": number})
    code = pairing.code(trust.fingerprint(pem), name, number, str(asked["number"]))
    output.say(
        f"\n  {code[:3]} {code[3:]}\n\nOn the controller ({at.name}, {at.host}) run "
        "`corral worker requests`. If it shows the same code, and only then:\n\n"
        f"  corral worker confirm {code}\n"
    )
    until = time.monotonic() + min(float(asked["kept_s"]), CONFIRM_S)
    while time.monotonic() < until:
        card: dict[str, Any] | None = _ask("GET", place, pem, token=number)["worker"]
        if card is not None:
            output.say(f"Enrolled as {card['name']!r} at {url}.")
            return {**card, "url": url, "certificate": pem}
    raise Unavailable("Nobody confirmed the code in time. Join again when somebody is there.")


def _check_free(known: dict[str, Any], *, again: bool) -> None:
    if known.get("credential") and not again:
        raise Conflict(
            f"This home already has a worker, {known.get('name') or known['worker_id']!r}, of "
            f"{known.get('url')}. Leave that one with --again, or choose another CORRAL_HOME."
        )


def _begin(home: Path, *, as_service: bool | None, detach: bool) -> int:
    from corral.agent import service

    if detach:
        return _detached(home)
    if as_service is None:
        as_service = service.available()
        if not as_service:
            output.say(
                "No systemd runs here, so the worker works until Ctrl-C. To keep it, use "
                "--detach, or have whatever starts things here run `corral worker run`."
            )
    if not as_service:
        return _run_here(home)
    output.say(service.install(_service_name(home), home.resolve()))
    return 0


def _service_name(home: Path) -> str:
    from corral import settings
    from corral.agent import service

    return service.name_of(home.resolve(), settings.default_home({}).resolve())


def _run(home: Path, *, restarts: bool) -> int:
    from corral.agent.keeper import Keeper

    return Keeper(home, restarts=restarts).run()


def _run_here(home: Path) -> int:
    """The worker in this very process, begun anew: what it was called with has an invitation."""
    if sys.platform == "win32":
        return _run(home, restarts=False)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "corral.agent.keeper", str(home)])  # noqa: S606


@app.command()
def run(
    home: Annotated[
        Path | None, typer.Option(help="Its home; without it CORRAL_HOME or the usual one.")
    ] = None,
) -> None:
    """Works for the controller that this machine joined; what dies is started again."""
    from corral import settings

    home = (home or settings.default_home()).resolve()
    _card(home)
    raise typer.Exit(_run(home, restarts=True))


def _card(home: Path) -> dict[str, Any]:
    """Who this machine is, as a worker."""
    from corral.home import Home, read_json

    known = read_json(Home(home).agent)
    if not known.get("credential"):
        raise Conflict(
            f"No worker of a controller lives in {home}. Join one first: `corral worker join '…'` "
            "with what `corral invite` prints there."
        )
    return known


@app.command()
def leave() -> None:
    """Ends this machine's worker and its service, and forgets the controller."""
    from corral import settings
    from corral.agent import service
    from corral.home import Home

    home = Home(settings.default_home())
    known = _card(home.path)
    if home.controller.exists():
        raise Conflict(
            "This is the home of a controller, and the worker its own. Switch it off with "
            "`worker: {enabled: false}` in corral.yaml."
        )
    if service.remove(_service_name(home.path)):
        output.say("The service is gone.")
    _stop(home.path)
    home.agent.unlink()
    name = known.get("name") or known["worker_id"]
    output.show(
        f"This machine is no worker any more. On the controller: corral worker revoke {name}"
    )


def _stop(home: Path) -> None:
    """Ends the agent that works here, however it was started; what it runs gets its grace."""
    from corral import settings
    from corral.home import Home, read_json
    from corral.locks import is_locked

    folder = Home(home).worker
    pid = read_json(folder / "up.json").get("pid")
    if not is_locked(folder / "lock") or not isinstance(pid, int):
        return
    output.say("Its running jobs get a moment to end …")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    patience_s = settings.load().settings.shutdown_grace_s + STOP_S
    if not output.waited(lambda: not is_locked(folder / "lock"), patience_s):
        raise Unavailable(f"The worker (pid {pid}) does not end. End it, then leave again.")


def enrol(url: str, token: str, name: str, pem: str) -> dict[str, Any]:
    """The credential of a new worker, for an invitation's token."""
    return _ask("POST", f"{url}/enrol", pem, {"name": name}, token=token)


def _ask(
    method: str, url: str, pem: str, body: dict[str, Any] | None = None, *, token: str = ""
) -> dict[str, Any]:
    from corral.joining import trust

    request = urllib.request.Request(  # noqa: S310 (the scheme is ours)
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with trust.opener(pem).open(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise _said(error) from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"The controller at {url} could not be asked ({error}).") from error


def _said(error: urllib.error.HTTPError) -> CorralError:
    try:
        told = from_view(json.load(error))
    except (OSError, ValueError):
        told = None
    return told or Unavailable(f"The controller answered {error.code} {error.reason}.")


def _detached(home: Path) -> int:
    command = [sys.executable, "-m", "corral.cli.main", "worker", "run", "--home", str(home)]
    log = home / "log" / "worker.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        code = process.wait(2.0)
    except subprocess.TimeoutExpired:
        output.say(f"The worker runs (pid {process.pid}); its log is {log}.")
        return 0
    output.say(f"The worker ended at once; see {log}.", style="red")
    return code or 1
