"""`corral secret`: values that jobs ask for by name. A value is typed, piped or taken from a
variable: arguments are in everybody's list of processes and in the shell's history."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.core.errors import InvalidSecret

app = output.Commands(help="Secrets that jobs ask for by name.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="As jobs name it, such as HF_TOKEN.")]


@app.command("set")
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
    if stdin and from_env:
        raise InvalidSecret("Give --stdin or --from-env, not both.")
    value = _value(name, stdin=stdin, from_env=from_env)
    found = client_of_this_home().secrets.set(name, value)
    sentence = f"{name} is set. A job asks for it with `--secret {name}` or secrets=[{name!r}]."
    output.answer(found, sentence, as_json)


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
def list_(as_json: AsJson = False) -> None:
    """Which secrets there are, and since when; never their values."""
    output.show_list(
        client_of_this_home().secrets.list(),
        ("NAME", "SET"),
        lambda secret: (secret.name, output.ago(secret.set_at)),
        none="No secrets. Set one with `corral secret set NAME`.",
        as_json=as_json,
    )


@app.command("rm")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forgets a secret. Jobs that wait for it will fail; those that run keep it."""
    found = client_of_this_home().secrets.remove(name)
    output.answer(found, f"{name} is removed.", as_json)
