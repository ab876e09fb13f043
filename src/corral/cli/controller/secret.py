"""`corral secret`: values that jobs ask for by name. A value is typed, piped or taken from a
variable, never an argument: those are in everybody's list of processes and in the shell's history.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from corral.cli.terminal import output
from corral.core.errors import InvalidSecret

app = typer.Typer(help="Secrets that jobs ask for by name.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As jobs name it, such as HF_TOKEN.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


@app.command("set")
@output.guarded
def set_(
    name: Name,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the value from standard input.")
    ] = False,
    from_env: Annotated[
        bool, typer.Option("--from-env", help="Take the value of the variable NAME.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keeps a value under this name; asks for it without showing it."""
    from corral.sdk.client import Client

    if stdin and from_env:
        raise InvalidSecret("Give --stdin or --from-env, not both.")
    value = _value(name, stdin=stdin, from_env=from_env)
    with Client() as client:
        found = client.secrets.set(name, value)
    if as_json:
        output.show_json(found)
    else:
        output.show(
            f"{name} is set. A job asks for it with `--secret {name}` or secrets=[{name!r}]."
        )


def _value(name: str, *, stdin: bool, from_env: bool) -> str:
    if from_env:
        from corral import settings

        value = settings.secret_variable(name)
        if value is None:
            raise InvalidSecret(f"There is no variable {name} in this shell; export it first.")
        return value
    if stdin or not sys.stdin.isatty():
        # The newline is echo's, not the secret's.
        return sys.stdin.read().removesuffix("\n").removesuffix("\r")
    from getpass import getpass

    return getpass(f"Value of {name}: ")


@app.command("list")
@output.guarded
def list_(as_json: AsJson = False) -> None:
    """Which secrets there are, and since when; never their values."""
    from corral.sdk.client import Client

    with Client() as client:
        found = client.secrets.list()
    if as_json:
        output.show_json(found)
    elif found:
        output.show_table(
            ("NAME", "SET"), [(secret.name, output.ago(secret.set_at)) for secret in found]
        )
    else:
        output.say("No secrets. Set one with `corral secret set NAME`.")


@app.command("rm")
@output.guarded
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forgets a secret. Jobs that wait for it will fail; those that run keep it."""
    from corral.sdk.client import Client

    with Client() as client:
        found = client.secrets.remove(name)
    if as_json:
        output.show_json(found)
    else:
        output.show(f"{name} is removed.")
