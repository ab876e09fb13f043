"""Machines and people: invite, worker (join, drain, resume, revoke, rename, label), login."""

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
    help="Machines that work: join, drain, resume, revoke, rename, label.", no_args_is_help=True
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
        text, command = _admin().invite_client(client, role), "corral login"
    else:
        text, command = _admin().invite_worker(renew=renew), "corral worker join"
    if as_json:
        output.show_json({"invitation": text})
    else:
        output.say("Whoever has this string can use it. Run on the other machine:")
        print(f"{command} '{text}'")


# --- a machine joins ---


@worker.command()
@output.guarded
def join(
    invitation: Annotated[str, typer.Argument(help="What `corral invite` printed.")],
    name: Annotated[str, typer.Option(help="What to call this machine.")] = "",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave the worker running and return.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Be a new worker, whatever this machine was before.")
    ] = False,
) -> None:
    """Makes this machine a worker of a controller elsewhere, and works until it is stopped."""
    from corral import invitation as invitations
    from corral import settings, trust
    from corral.home import Home, read_json, write_private_json

    told = invitations.parse(invitation)
    home = Home(settings.default_home())
    home.worker.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_json(home.agent)
    pinned = known.get("certificate")
    if pinned and trust.fingerprint(pinned) == told.sha256 and not again:
        output.say(f"This machine is already the worker {known['name']!r} of that controller.")
        write_private_json(home.agent, {**known, "url": told.url})
    else:
        if known.get("credential") and not again:
            raise Conflict(
                f"This home already has a worker, {known.get('name') or known['worker_id']!r}, of "
                f"{known.get('url')}. Leave that one with --again, or choose another CORRAL_HOME."
            )
        pem = trust.fetched(told.host, told.port, told.sha256)
        config = settings.load()
        name = name or config.settings.worker.name or socket.gethostname().split(".")[0]
        card = _enrol(told.url, told.token, name, pem)
        write_private_json(home.agent, {**card, "url": told.url, "certificate": pem})
        output.say(f"Enrolled as {card['name']!r} at {told.url}.")
    raise typer.Exit(_work(home.path, detach=detach))


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


def _work(home: Path, *, detach: bool) -> int:
    command = [sys.executable, "-m", "corral.agent.main", "--home", str(home)]
    if not detach:
        return subprocess.call(command)
    log = home / "log" / "worker.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        code = process.wait(1.0)
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
