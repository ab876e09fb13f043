"""`corral presets`: bases of plans that the controller keeps under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home

app = output.Commands(help="Bases of plans, kept under a name.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As plans name it.")]


@app.callback(invoke_without_command=True)
def presets(context: typer.Context) -> None:
    """Without a word behind it: lists them."""
    if context.invoked_subcommand is None:
        list_(as_json=False)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Which presets there are, and since when."""
    output.show_list(
        client_of_this_home().presets.list(),
        ("NAME", "SAVED"),
        lambda preset: (preset.name, output.ago(preset.saved_at)),
        none="No presets. Save one with `corral presets save NAME FILE`.",
        as_json=as_json,
    )


@app.command("save")
def save(
    name: Name,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML or JSON: settings by stage, or a plan.")
    ],
    as_json: AsJson = False,
) -> None:
    """Keeps settings by stage, or the base of a plan, under this name."""
    from corral.sdk.images.plan_files import read

    value = read(file)
    base = value["base"] if isinstance(value.get("base"), dict) else value
    found = client_of_this_home().presets.save(name, base)
    sentence = f"{name} is saved. A plan begins with it by `preset: {name}`."
    output.answer(found, sentence, as_json)


@app.command("show")
def show(name: Name, as_json: AsJson = False) -> None:
    """The settings of a preset."""
    import yaml

    found = client_of_this_home().presets.get(name)
    if as_json:
        output.show_json_line(found, indent=2)
    else:
        output.show(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


@app.command("remove")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forgets a preset. Batches that were built with it stay as they are."""
    found = client_of_this_home().presets.remove(name)
    output.answer(found, f"{name} is removed.", as_json)
