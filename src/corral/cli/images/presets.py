"""`corral presets`: bases of plans that the controller keeps under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson

app = typer.Typer(help="Bases of plans, kept under a name.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As plans name it.")]


@app.callback(invoke_without_command=True)
def presets(context: typer.Context) -> None:
    """Without a word behind it: lists them."""
    if context.invoked_subcommand is None:
        list_(as_json=False)


@app.command("list")
@output.guarded
def list_(as_json: AsJson = False) -> None:
    """Which presets there are, and since when."""
    from corral.sdk.client import Client

    with Client() as client:
        found = client.presets.list()
    if as_json:
        output.show_json(found)
    elif found:
        output.show_table(
            ("NAME", "SAVED"), [(preset.name, output.ago(preset.saved_at)) for preset in found]
        )
    else:
        output.say("No presets. Save one with `corral presets save NAME FILE`.")


@app.command("save")
@output.guarded
def save(
    name: Name,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML or JSON: settings by stage, or a plan.")
    ],
    as_json: AsJson = False,
) -> None:
    """Keeps settings by stage, or the base of a plan, under this name."""
    from corral.sdk.client import Client
    from corral.sdk.images.plan_files import read

    value = read(file)
    base = value["base"] if isinstance(value.get("base"), dict) else value
    with Client() as client:
        found = client.presets.save(name, base)
    if as_json:
        output.show_json(found)
    else:
        output.show(f"{name} is saved. A plan begins with it by `preset: {name}`.")


@app.command("show")
@output.guarded
def show(name: Name, as_json: AsJson = False) -> None:
    """The settings of a preset."""
    import yaml

    from corral.sdk.client import Client

    with Client() as client:
        found = client.presets.get(name)
    if as_json:
        output.show_json_line(found, indent=2)
    else:
        output.show(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


@app.command("remove")
@output.guarded
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forgets a preset. Batches that were built with it stay as they are."""
    from corral.sdk.client import Client

    with Client() as client:
        found = client.presets.remove(name)
    if as_json:
        output.show_json(found)
    else:
        output.show(f"{name} is removed.")
