"""`corral put`: input files, stored ahead of the jobs that name them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
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
    from corral.sdk.files.progress import Progress


def put(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files or folders to store.")],
    as_json: AsJson = False,
) -> None:
    """Stores files for jobs and prints their sha256. What is there already is not sent again."""
    with client_of_this_home() as client:
        named = [one for file in files for one in _files(file)]
        with _progress(path for _, path in named) as progress:
            found = [
                replace(client.put(path, progress=progress.advance), name=name)
                for name, path in named
            ]
    output.answer(found, (f"{one.sha256}  {one.name}" for one in found), as_json)


def _files(given: Path) -> list[tuple[str, Path]]:
    """The file, or all below the folder, as `sha256sum` would name them."""
    if not given.is_dir():
        return [(given.name, given)]
    below = sorted(path for path in given.rglob("*") if path.is_file())
    if not below:
        raise InvalidJob(f"There is no file in the folder {given}.")
    top = given.resolve().name
    return [(f"{top}/{path.relative_to(given).as_posix()}", path) for path in below]


async def inputs_of(client: AsyncClient, texts: list[str] | None) -> dict[str, Asset]:
    """`--input NAME=FILE`, all files of a folder as NAME/…, or the sha256 of one put before."""
    from corral.sdk.files.assets import Asset

    found: dict[str, Asset] = {}
    files: dict[str, Path] = {}
    for text in texts or ():
        name, sign, given = text.partition("=")
        if not sign or not name or not given:
            raise InvalidJob(f"--input is written NAME=FILE; got {text!r}.")
        if is_digest(given) and not Path(given).exists():
            found[name] = Asset(sha256=given, size=0, name=name)
            continue
        for inside, path in _files(Path(given)):
            _, below, rest = inside.partition("/")
            files[f"{name}/{rest}" if below else name] = path
    with _progress(files.values()) as progress:
        for name, path in files.items():
            found[name] = await client.put(path, progress=progress.advance)
    return found


def _progress(paths: Iterable[Path]) -> Progress:
    """Of all of them together: of a thousand small files none is large."""
    from corral.sdk.files.progress import Progress

    sizes = [path.stat().st_size for path in paths if path.exists()]
    what = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
    return Progress(f"sending {what}", sum(sizes))
