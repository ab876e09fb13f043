"""`corral images`: the images of a batch in a folder, with a page that shows them all."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home


def images(
    batch: Annotated[str, typer.Option(help="Which batch.")],
    out: Annotated[Path | None, typer.Option(help="The folder. [the batch's name, here]")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace other files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetches a batch's images and their replay cards, with a contact sheet; goes on where it
    was."""
    from corral.cli.terminal.bar import Bar
    from corral.sdk.images import contact_sheet

    folder = out or Path(folder_name(batch))
    missing: list[str] = []
    with closing(Bar()) as bar:
        with client_of_this_home() as client:
            handle = client.open_batch(batch)
            view = handle.progress()
            found = handle.download(
                folder,
                lambda done, total: bar.update(done / total, f"{done} of {total} files"),
                lambda one, error: missing.append(f"{one.job_id} {one.name}: {error}"),
                overwrite=force,
            )
        entries = [
            contact_sheet.SheetEntry(path, one.job_id, one.worker, contact_sheet.read_card(path))
            for one, path in found
            if path.suffix == ".png"
        ]
        bar.update(1.0, "the contact sheet")
        sheet = contact_sheet.write(folder, batch, entries, overwrite=force)
    if missing:
        said = f"{len(missing)} files could not be had, and were left out; the first: {missing[0]}"
        output.say(said, style="yellow")
    if as_json:
        made = [
            {"job_id": one.job_id, "path": str(one.path), "worker": one.worker} for one in entries
        ]
        told = {"batch": batch, "folder": str(folder), "sheet": str(sheet), "images": made}
        output.show_json(told)
        return
    if not view.ended:
        left = view.jobs - round(view.done * view.jobs)
        output.say(f"{left} of {view.jobs} jobs have not ended yet; ask again for their images.")
    images = "image" if len(entries) == 1 else "images"
    output.show(f"{len(entries)} {images} in {folder}; {sheet} shows them all.")


def folder_name(batch: str) -> str:
    """A name that is one folder's, whatever the batch is called.

    >>> folder_name("night/1-ab"), folder_name("..")
    ('night_1-ab', 'batch')
    """
    kept = "".join(one if one.isalnum() or one in "._- " else "_" for one in batch)
    return kept.strip(". ") or "batch"
