"""A copy of everything a controller knows, and the way back: backup, restore."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.controller import up
from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.cli.terminal.bar import Bar
from corral.core.text import size_of


def backup(
    file: Annotated[
        Path | None, typer.Argument(help="Where to write it; by default corral-DATE.tar here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copies everything the controller knows into one file, while it works on."""
    from msgspec.structs import asdict

    from corral.controller.recovery.restore import checked
    from corral.core.errors import StorageFailed
    from corral.home import sync_folder

    path = file or Path(time.strftime("corral-%Y%m%d-%H%M%S.tar"))
    incoming = path.with_name(f"{path.name}.partial")
    bar = Bar()
    try:
        # It holds tokens and keys: nobody else may read it.
        fd = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as target, client_of_this_home() as client:
            client.backup(
                target.write, lambda done, total: bar.update(done / total, "copying the home")
            )
            target.flush()
            os.fsync(target.fileno())
        found = checked(incoming, progress=lambda share: bar.update(share, "proving the copy"))
        incoming.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageFailed(
            f"{path} cannot be written ({error.strerror}). Name another place for it."
        ) from error
    finally:
        bar.close()
        incoming.unlink(missing_ok=True)
    if as_json:
        output.show_json({"file": str(path.absolute()), **asdict(found)})
        return
    output.show(f"{path}: {found.files:,} files, {size_of(path.stat().st_size)}, proven.")
    output.show("It holds tokens and keys: keep it where only you can read it.")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `corral backup` made.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Puts a backup in the place of this home; what was there is kept aside."""
    from msgspec.structs import asdict

    from corral import logs, settings
    from corral.controller.recovery import restore as restoring
    from corral.core.errors import BackupRefused
    from corral.home import Home

    logs.configure("warning", "console")
    home = Home(settings.default_home())
    if not file.is_file():
        raise BackupRefused(f"There is no file {file}.")
    with closing(Bar()) as bar:
        folder, found = restoring.prepare(
            home, file, progress=lambda share: bar.update(share, "proving the backup")
        )
    try:
        process = up.controller_of(home.path)
        if not yes and not _agreed(home.path, restoring.when(found.made_at), process):
            output.say("Nothing was changed. Add --yes to do it without being asked.")
            raise typer.Exit(1)
        restoring.commit(home, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    restarted = process is not None and _restart(home.path, process)
    if restoring.pending(home):
        home.take()
        try:
            restoring.swap_in(home)
        finally:
            home.release()
    kept = max(home.backups.glob("before-restore-*"), key=lambda path: path.stat().st_ctime)
    if as_json:
        told = {"home": str(home.path), "kept": str(kept), "restarted": restarted}
        output.show_json({**told, **asdict(found)})
        return
    output.show(f"Restored what was there on {restoring.when(found.made_at)}.")
    output.show(f"The former state is kept in {kept}.")
    output.show(
        "The controller is up again." if restarted else "Start the controller with `corral up`."
    )
    if process is not None and not restarted:
        raise typer.Exit(1)


def _agreed(home: Path, when: str, process: Any) -> bool:
    output.show(f"The backup of {when} is whole. It takes the place of everything in {home}.")
    output.show(
        "What is there now is kept aside. Jobs submitted since then will not be known any more."
    )
    if process is not None:
        output.show(
            "The running controller stops, with its usual grace for attempts, and starts again."
        )
    return sys.stdin.isatty() and typer.confirm("Go on?")


def _restart(home: Path, process: Any) -> bool:
    """Asks the controller to end; it sees what is to be restored, and begins again by itself."""
    from corral import settings
    from corral.home import Home, read_json

    before = read_json(Home(home).controller).get("started_at")
    patience_s = settings.load(home).settings.shutdown_grace_s + up.START_S

    def settled() -> bool:
        card = read_json(Home(home).controller)
        again = card.get("started_at") != before and bool(up.health_of(card))
        return again or up.gone(process)

    process.send_signal(signal.SIGTERM)
    up.with_spinner("Restarting the controller …", settled, patience_s)
    return bool(up.health_of(read_json(Home(home).controller)))
