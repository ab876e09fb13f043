"""Machines and people: invite, worker (drain, revoke, …), login."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import completion, output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.core.errors import CorralError, InvalidRequest
from corral.core.text import seconds
from corral.joining.invitation import parse

if TYPE_CHECKING:
    from corral.contract.views import WorkerView
    from corral.sdk.administration import Administration

app = output.Commands(
    help="Machines that work: join, leave, drain, resume, revoke, rename, label.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(help="The worker's name or id.", autocompletion=completion.workers)
]


def _admin() -> Administration:
    return client_of_this_home().admin


# --- inviting ---


def invite(
    client: Annotated[
        str, typer.Option(help="Invite a client: the name of its token. Without it, a worker.")
    ] = "",
    role: Annotated[str, typer.Option(help="Of that client: read, submit or admin.")] = "submit",
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="How long it is good, such as 1h. [1d; a client's: never]"
        ),
    ] = "",
    uses: Annotated[
        int | None, typer.Option(min=1, help="How many machines may join with it. [any number]")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Void what was given out to workers before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prints the string with which a machine joins or a client logs in."""
    expires_in = seconds(for_, "--for") if for_ else 0.0
    if for_ and not expires_in:
        raise InvalidRequest("An invitation is good for some time: --for 1h, for one.")
    if client:
        if uses or renew:
            raise InvalidRequest(
                "--uses and --renew are for workers. A client's token is revoked with `corral "
                "token revoke`, and --for says how long it is good."
            )
        text = _admin().invite_client(client, role, expires_in)
        if as_json:
            output.show_json({"invitation": text})
        else:
            output.say("Whoever has this string can use it. Run on the other machine:")
            output.show(parse(text).command())
            output.say("\nor, on Windows:")
            output.show(f"corral login '{text}'")
        return
    told = _admin().invite_machine(expires_in=expires_in, uses=uses or 0, renew=renew)
    if as_json:
        output.show_json(told)
        return
    output.say(f"{_good_for(told.expires_at, uses)} Run on the other machine:")
    output.show(parse(told.invitation).command())
    output.say("\nWhere Corral is not installed yet, on Linux:")
    output.show(told.shell)
    output.say("\nand on Windows, in PowerShell:")
    output.show(told.powershell)


def _good_for(expires_at: float, uses: int | None) -> str:
    if not expires_at:
        return "Machines of your tailnet join with this."
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires_at))
    if uses:
        return f"{uses} machine{'s' * (uses > 1)} can join with this until {until}."
    return f"Whoever has one of these lines can use it until {until}."


# --- steering ---


def _then(view: WorkerView) -> str:
    if not view.connected:
        return ", also when it is back: it is not connected."
    if not view.running:
        return "; nothing runs there any more."
    return f"; {view.running} still run{'s' * (view.running == 1)} there."


@app.command()
def requests(as_json: AsJson = False) -> None:
    """Machines that found this controller by themselves and wait to be confirmed."""
    output.show_list(
        _admin().join_requests(),
        ("CODE", "NAME", "ADDRESS", "WAITS"),
        lambda one: (one.code, one.name, one.address, output.span(one.age_s)),
        none="No machine asks. Run `corral worker join` on one, without a string.",
        as_json=as_json,
    )


@app.command()
def confirm(
    code: Annotated[str, typer.Argument(help="The six digits that the machine shows.")],
    as_json: AsJson = False,
) -> None:
    """Makes the machine that shows this code a worker."""
    name = _admin().confirm_join(code)
    output.answer({"name": name}, f"{name} is a worker now.", as_json)


@app.command()
def drain(name: Name, as_json: AsJson = False) -> None:
    """It finishes what runs there and takes nothing new."""
    view = _admin().change_worker(name, draining=True)
    output.answer(view, f"{view.name} takes nothing new{_then(view)}", as_json)


@app.command()
def resume(name: Name, as_json: AsJson = False) -> None:
    """It takes work again."""
    view = _admin().change_worker(name, draining=False)
    when = "" if view.connected else ", as soon as it is back: it is not connected"
    output.answer(view, f"{view.name} takes work again{when}.", as_json)


@app.command()
def revoke(name: Name, as_json: AsJson = False) -> None:
    """Cuts it off at once; what it was running goes elsewhere."""
    view = _admin().revoke_worker(name)
    output.answer(view, f"{view.name} is no worker any more.", as_json)


@app.command()
def rename(
    name: Name,
    new: Annotated[str, typer.Argument(help="What it is called from now on.")],
    as_json: AsJson = False,
) -> None:
    """Gives it another name."""
    view = _admin().change_worker(name, name=new)
    output.answer(view, f"{name} is now called {view.name}.", as_json)


@app.command()
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
    output.answer(view, f"{view.name} has the labels: {has}.", as_json)


# --- a client elsewhere ---


def login(
    invitation: Annotated[
        str,
        typer.Argument(
            help="The string of `corral invite --client`, unless CORRAL_INVITATION has it."
        ),
    ] = "",
) -> None:
    """Remembers a controller on another machine, for the commands and for Python."""
    from corral import settings
    from corral.home import Home, write_private_json
    from corral.joining import invitation as invitations
    from corral.joining import trust
    from corral.sdk.client import Client

    told = invitations.for_client(invitation or settings.taken_invitation())
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
    output.show(f"Logged in to {told.grpc} (Corral {health.version}). `corral logout` forgets it.")


def logout() -> None:
    """Forgets the controller of `corral login`."""
    from corral import settings
    from corral.home import Home

    login = Home(settings.default_home()).login
    if login.exists():
        login.unlink()
        output.show("Forgotten.")
    else:
        output.say("Nobody is logged in here.")
