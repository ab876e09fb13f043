"""`corral get`: artifacts of a job as files here. A job chose their names, so nothing is replaced
and no hidden file is made unasked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, JobArgument, client_of_this_home, find
from corral.core.errors import BlobNotFound, Conflict

if TYPE_CHECKING:
    from corral.contract.views import Artifact
    from corral.sdk.handles import Handle

LISTED = 5
Target = tuple["Artifact", Path]


def get(
    job: JobArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One artifact. [all of them]")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="A folder, or a file for one artifact.")] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace files and make hidden ones, unasked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetches artifacts of a job and prints where they lie."""
    with client_of_this_home() as client:
        handle = find(client, job)
        targets = _targets(handle, name, to)
        overwrite = force or _asked(targets, named=name is not None)
        for artifact, path in targets:
            handle.download(artifact.name, path, overwrite=overwrite)
    if not targets and not as_json:
        output.say(f"Job {handle.id} has no artifacts.")
    told = [{"name": artifact.name, "path": str(path)} for artifact, path in targets]
    output.answer(told, (str(path) for _, path in targets), as_json)


def _targets(handle: Handle, name: str | None, to: Path | None) -> list[Target]:
    from corral.sdk.files.downloads import place

    found = handle.artifacts()
    if name is None:
        return [(one, place(to or Path(), one.name)) for one in found]
    wanted = [one for one in found if one.name == name]
    if not wanted:
        known = ", ".join(one.name for one in found) or "none"
        raise BlobNotFound(f"Job {handle.id} has no artifact {name!r}; it has {known}.")
    into = to or Path()
    return [(wanted[0], place(into, Path(name).name) if into.is_dir() else into)]


def _asked(targets: Sequence[Target], *, named: bool) -> bool:
    """Whether the person agrees to replaced or hidden files; where nobody can answer, an error."""
    from corral.sdk.files.downloads import in_the_way, is_hidden

    taken = [path for one, path in targets if in_the_way(path, one.file_sha256)]
    # Who types a name knows it.
    hidden = [path for one, path in targets if is_hidden(one.name) and not named]
    told = [
        *_told("There are other files already", taken),
        *_told("Programs may obey hidden files", [path for path in hidden if path not in taken]),
    ]
    if not told:
        return False
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        told.append("Nothing was fetched. Choose another folder with --to, or add --force.")
        raise Conflict(" ".join(told))
    output.say(" ".join(told), style="yellow")
    if not typer.confirm("Write them?", err=True):
        output.say("Nothing was fetched.")
        raise typer.Exit(1)
    return True


def _told(what: str, paths: Sequence[Path]) -> list[str]:
    if not paths:
        return []
    more = f" and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return [f"{what}: {', '.join(map(str, paths[:LISTED]))}{more}."]
