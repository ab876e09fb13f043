"""`corral token`: tokens of clients, each with a name and a role."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.core.text import seconds

if TYPE_CHECKING:
    from corral.contract.views import TokenView

app = output.Commands(help="Tokens of clients, each with a name and a role.", no_args_is_help=True)


@app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Shown as the user of its jobs.")],
    role: Annotated[str, typer.Option(help="read, submit or admin.")] = "submit",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Such as 12h or 30d. [never]")] = "",
    as_json: AsJson = False,
) -> None:
    """Makes a token and prints it, this once."""
    from msgspec.structs import asdict

    with client_of_this_home() as client:
        made, view = client.admin.create_token(
            name, role, expires_in=seconds(expires, "--expires") if expires else 0.0
        )
    if as_json:
        output.show_json({"token": made, **asdict(view)})
        return
    output.show(made)
    output.say(f"Give it as CORRAL_TOKEN, or as `Authorization: Bearer …`. {_until(view)}")


@app.command("list")
def token_list(as_json: AsJson = False) -> None:
    """Every token: its name and role, when it was made and until when it is good."""
    output.show_list(
        client_of_this_home().admin.tokens(),
        ("TOKEN", "ROLE", "MADE", "GOOD"),
        lambda one: (one.name, one.role, output.ago(one.created_at), _until(one)),
        none="No tokens but the home's own. Make one with `corral token create`.",
        as_json=as_json,
    )


@app.command("revoke")
def token_revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")], as_json: AsJson = False
) -> None:
    """Makes a token good for nothing."""
    view = client_of_this_home().admin.revoke_token(name)
    output.answer(view, f"The token {view.name} is revoked.", as_json)


def _until(view: TokenView) -> str:
    if not view.expires_at:
        return "It never expires."
    left = view.expires_at - time.time()
    return f"It expires in {output.span(left)}." if left > 0 else "It has expired."
