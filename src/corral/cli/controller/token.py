"""`corral token`: tokens of clients, each with a name and a role."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home

if TYPE_CHECKING:
    from corral.contract.views import TokenView

app = typer.Typer(help="Tokens of clients, each with a name and a role.", no_args_is_help=True)


@app.command("create")
@output.guarded
def token_create(
    name: Annotated[str, typer.Argument(help="Shown as the user of its jobs.")],
    role: Annotated[str, typer.Option(help="read, submit or admin.")] = "submit",
    expires: Annotated[str, typer.Option(metavar="TIME", help="Such as 12h or 30d. [never]")] = "",
    as_json: AsJson = False,
) -> None:
    """Makes a token and prints it, this once."""
    from corral.cli.jobs.run import seconds

    with client_of_this_home() as client:
        made, view = client.admin.create_token(
            name, role, expires_in=seconds(expires, "--expires") if expires else 0.0
        )
    if as_json:
        output.show_json({"token": made, **_plain(view)})
        return
    output.show(made)
    output.say(f"Give it as CORRAL_TOKEN, or as `Authorization: Bearer …`. {_until(view)}")


@app.command("list")
@output.guarded
def token_list(as_json: AsJson = False) -> None:
    """Every token: its name and role, when it was made and until when it is good."""
    with client_of_this_home() as client:
        found = client.admin.tokens()
    if as_json:
        output.show_json(found)
        return
    if not found:
        output.say("No tokens but the home's own. Make one with `corral token create`.")
        return
    output.show_table(
        ("TOKEN", "ROLE", "MADE", "GOOD"),
        [(one.name, one.role, output.ago(one.created_at), _until(one)) for one in found],
    )


@app.command("revoke")
@output.guarded
def token_revoke(
    name: Annotated[str, typer.Argument(help="The token's name.")], as_json: AsJson = False
) -> None:
    """Makes a token good for nothing."""
    with client_of_this_home() as client:
        view = client.admin.revoke_token(name)
    if as_json:
        output.show_json(view)
        return
    output.show(f"The token {view.name} is revoked.")


def _until(view: TokenView) -> str:
    if not view.expires_at:
        return "It never expires."
    left = view.expires_at - time.time()
    return f"It expires in {output.span(left)}." if left > 0 else "It has expired."


def _plain(view: TokenView) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(view)
    return found
