"""Machines and people: invite, worker (join, leave, drain, revoke, …), login."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli import output
from corral.cli.controlling import AsJson
from corral.core.errors import Conflict, CorralError, Unavailable, from_view

worker = typer.Typer(
    help="Machines that work: join, leave, drain, resume, revoke, rename, label.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The worker's name or id.")]


def _admin() -> Any:
    from corral.sdk.client import Client

    return Client().admin


# --- inviting ---


@output.guarded
def invite(
    client: Annotated[
        str, typer.Option(help="Invite a client: the name of its token. Without it, a worker.")
    ] = "",
    role: Annotated[str, typer.Option(help="Of that client: read, submit or admin.")] = "submit",
    renew: Annotated[
        bool, typer.Option("--renew", help="Void what was given out to workers before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prints the string with which a machine joins or a client logs in."""
    if client:
        text = _admin().invite_client(client, role)
        if as_json:
            output.show_json({"invitation": text})
        else:
            output.say("Whoever has this string can use it. Run on the other machine:")
            print(f"corral login '{text}'")
        return
    told = _admin().invite_machine(renew=renew)
    if as_json:
        output.show_json(told)
        return
    output.say("Whoever has one of these lines can use it. Run on the other machine:")
    print(f"corral worker join '{told.invitation}'")
    output.say("\nWhere Corral is not installed yet, on Linux:")
    print(told.shell)
    output.say("\nand on Windows, in PowerShell:")
    print(told.powershell)


# --- a machine joins ---


Foreground = Annotated[
    bool | None,
    typer.Option(
        "--service/--foreground",
        help="As a service of this machine, or until Ctrl-C. Without either: as a service where "
        "systemd or Windows keeps services.",
    ),
]


@worker.command()
@output.guarded
def join(
    invitation: Annotated[str, typer.Argument(help="What `corral invite` printed.")],
    name: Annotated[str, typer.Option(help="What to call this machine.")] = "",
    as_service: Foreground = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave the worker running and return.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Leave the controller it belongs to for this one.")
    ] = False,
) -> None:
    """Makes this machine a worker of a controller elsewhere, from now on."""
    from corral import invitation as invitations
    from corral import settings, trust
    from corral.home import Home, read_json, write_private_json

    told = invitations.parse(invitation)
    home = Home(settings.default_home())
    home.worker.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_json(home.agent)
    if known.get("certificate") and trust.fingerprint(known["certificate"]) == told.sha256:
        output.say(f"This machine is already the worker {known['name']!r} of that controller.")
        write_private_json(home.agent, {**known, "url": told.url})
    else:
        _check_free(known, again=again)
        pem = trust.fetched(told.host, told.port, told.sha256)
        config = settings.load()
        name = name or config.settings.worker.name or socket.gethostname().split(".")[0]
        card = _enrol(told.url, told.token, name, pem)
        write_private_json(home.agent, {**card, "url": told.url, "certificate": pem})
        output.say(f"Enrolled as {card['name']!r} at {told.url}.")
    raise typer.Exit(_begin(home.path, as_service=as_service, detach=detach))


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
                "No systemd runs here, so that the worker works until Ctrl-C. To keep it, use "
                "--detach, or have whatever starts things here run `corral worker run`."
            )
    if not as_service:
        return _run(home, restarts=False)
    output.say(service.install(_service_name(home), home.resolve()))
    return 0


def _service_name(home: Path) -> str:
    from corral import settings
    from corral.agent import service

    return service.name_of(home.resolve(), settings.default_home({}).resolve())


def _run(home: Path, *, restarts: bool) -> int:
    from corral.agent.keeper import Keeper

    return Keeper(home, restarts=restarts).run()


@worker.command()
@output.guarded
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


@worker.command()
@output.guarded
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
    home.agent.unlink()
    name = known.get("name") or known["worker_id"]
    print(f"This machine is no worker any more. On the controller: corral worker revoke {name}")


def _enrol(url: str, token: str, name: str, pem: str) -> dict[str, Any]:
    from corral import trust

    request = urllib.request.Request(  # noqa: S310 (the scheme is ours)
        f"{url}/enrol",
        data=json.dumps({"name": name}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),  # a proxy for the web has no business here
        urllib.request.HTTPSHandler(context=trust.context(pem)),
    )
    try:
        with opener.open(request, timeout=30) as answer:
            card: dict[str, Any] = json.load(answer)
            return card
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


# --- steering ---


def _show(view: Any, sentence: str, as_json: bool) -> None:
    if as_json:
        output.show_json(view)
    else:
        print(sentence)


@worker.command()
@output.guarded
def drain(name: Name, as_json: AsJson = False) -> None:
    """It finishes what runs there and takes nothing new."""
    view = _admin().change_worker(name, draining=True)
    _show(view, f"{view.name} takes nothing new; {view.running} still run there.", as_json)


@worker.command()
@output.guarded
def resume(name: Name, as_json: AsJson = False) -> None:
    """It takes work again."""
    view = _admin().change_worker(name, draining=False)
    _show(view, f"{view.name} takes work again.", as_json)


@worker.command()
@output.guarded
def revoke(name: Name, as_json: AsJson = False) -> None:
    """Cuts it off at once; what it was running goes elsewhere."""
    view = _admin().revoke_worker(name)
    _show(view, f"{view.name} is no worker any more.", as_json)


@worker.command()
@output.guarded
def rename(
    name: Name,
    new: Annotated[str, typer.Argument(help="What it is called from now on.")],
    as_json: AsJson = False,
) -> None:
    """Gives it another name."""
    view = _admin().change_worker(name, name=new)
    _show(view, f"{name} is now called {view.name}.", as_json)


@worker.command()
@output.guarded
def label(
    name: Name,
    labels: Annotated[
        list[str] | None, typer.Argument(help="All labels you add; none takes them away.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Gives it labels that jobs may ask for, instead of those you gave before."""
    view = _admin().change_worker(name, labels=labels or [])
    has = ", ".join(view.labels) or "none"
    _show(view, f"{view.name} has the labels: {has}.", as_json)


# --- a client elsewhere ---


@output.guarded
def login(
    invitation: Annotated[str, typer.Argument(help="What `corral invite --client` printed.")],
) -> None:
    """Remembers a controller on another machine, for the commands and for Python."""
    from corral import invitation as invitations
    from corral import settings, trust
    from corral.home import Home, write_private_json
    from corral.sdk.client import Client

    told = invitations.parse(invitation)
    home = Home(settings.default_home())
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = trust.fetched(told.host, told.port, told.sha256)
    card = {"address": told.grpc, "token": told.token, "certificate": pem}
    before = home.login.read_bytes() if home.login.exists() else None
    write_private_json(home.login, card)
    try:
        with Client(home=home.path) as client:
            health = client.health()
    except CorralError:
        if before is None:
            home.login.unlink()
        else:
            home.login.write_bytes(before)
        raise
    print(f"Logged in to {told.grpc} (Corral {health.version}). `corral logout` forgets it.")


@output.guarded
def logout() -> None:
    """Forgets the controller of `corral login`."""
    from corral import settings
    from corral.home import Home

    login = Home(settings.default_home()).login
    if login.exists():
        login.unlink()
        print("Forgotten.")
    else:
        output.say("Nobody is logged in here.")
