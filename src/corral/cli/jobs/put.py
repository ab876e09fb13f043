"""`corral put`: input files, stored ahead of the jobs that name them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.core.errors import InvalidJob
from corral.core.text import is_digest

if TYPE_CHECKING:
    from corral.sdk.aio import AsyncClient
    from corral.sdk.files.assets import Asset


def put(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files to store.")],
    as_json: AsJson = False,
) -> None:
    """Stores files for jobs and prints their sha256. What is there already is not sent again."""
    with client_of_this_home() as client:
        found = [client.put(file) for file in files]
    output.answer(found, (f"{one.sha256}  {one.name}" for one in found), as_json)


async def inputs_of(client: AsyncClient, texts: list[str] | None) -> dict[str, Asset]:
    """`--input NAME=FILE`, or the sha256 of a file that was put before."""
    from corral.sdk.files.assets import Asset

    found = {}
    for text in texts or ():
        name, sign, given = text.partition("=")
        if not sign or not name or not given:
            raise InvalidJob(f"--input is written NAME=FILE; got {text!r}.")
        if is_digest(given) and not Path(given).exists():
            found[name] = Asset(sha256=given, size=0, name=name)
        else:
            found[name] = await client.put(given)
    return found
