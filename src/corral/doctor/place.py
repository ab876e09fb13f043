"""Checks of a home on disk, whatever state it is in. Nothing is written."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from corral import settings
from corral.controller.journal.database import Journal
from corral.controller.recovery.proof import verified
from corral.core.errors import CorralError, HomeUnusable, InvalidSettings, JournalDamaged
from corral.doctor.findings import Check, Finding, fail, ok, warn
from corral.home import Home

FREE_BYTES = 2 << 30
FREE_SHARE = 0.05
LOOK_S = 5.0
"""How long the journal is read; a long one is proven in part, and the finding says so."""
OLD_S = 3600.0
SKEW_S = 60.0


class Place:
    def __init__(self, home: Path, *, look_s: float = LOOK_S) -> None:
        self._home, self._paths, self._look_s = home, Home(home), look_s

    def checks(self) -> Sequence[Check]:
        inside = (self.settings, self.token, self.disk, self.journal, self.leftovers)
        return (self.home, *(() if self._closed() else inside))

    def home(self) -> Iterator[Finding]:
        home = self._home
        if self._closed():
            yield fail(
                f"{home} cannot be read and written by you.",
                f"sudo chown -R $(id -un) {home}, or set another CORRAL_HOME.",
            )
            return
        if not os.path.lexists(home):
            parent = next(folder for folder in home.absolute().parents if os.path.exists(folder))
            if os.access(parent, os.W_OK):
                yield ok(f"{home} does not exist yet; `corral up` makes it")
            else:
                yield fail(
                    f"{home} does not exist, and {parent} cannot be written.",
                    "Choose a place of your own with CORRAL_HOME.",
                )
            return
        if not home.is_dir():
            yield fail(f"{home} is no folder.", "Move it away, or set another CORRAL_HOME.")
            return
        paths = self._paths
        folders = (paths.journal, paths.blobs, paths.spool, paths.log, paths.worker)
        odd = [path.name for path in folders if path.exists() and not path.is_dir()]
        if odd:
            yield fail(f"In {home} these are no folders: {', '.join(odd)}.", "Move them away.")
        yield from self._private()

    def _closed(self) -> bool:
        """Whether we may not look inside; false where there is nothing."""
        try:
            os.stat(self._home)
        except PermissionError:
            return True
        except OSError:
            return False
        yours = os.access(self._home, os.R_OK | os.W_OK | os.X_OK)
        return self._home.is_dir() and not yours

    def _private(self) -> Iterator[Finding]:
        """Others on this machine must not read jobs, results, or the token."""
        if sys.platform == "win32":
            return
        paths = self._paths
        open_ = []
        for path in (self._home, paths.token, paths.transfer_key, paths.agent, paths.controller):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:
                continue
            if mode & 0o077:
                open_.append((path, mode))
        for path, mode in open_:
            said = f"{path} is open to others (mode {mode:o})."
            if path.is_dir():  # what is secret inside has a lock of its own
                yield warn(said, f"chmod 700 {path}")
            else:
                yield fail(said, f"chmod 600 {path}")
        if not open_:
            yield ok(f"{self._home}, yours alone")

    def settings(self) -> Iterator[Finding]:
        path = self._home / "corral.yaml"
        try:
            config = settings.load(self._home)
        except InvalidSettings as error:
            line = _line_of(path, error.message)
            where = f" (line {line} of {path})" if line else ""
            yield fail(f"{error.message}{where}", "Correct it, or take it out.")
            return
        own = [key for key, source in config.sources.items() if source != "default"]
        yield ok(f"valid; {len(own)} of your own" if own else "valid; all defaults")
        for key in settings.PATHS:
            for named in settings.value_of(config.settings, key):
                if not os.path.exists(named):
                    yield warn(
                        f"{key} names {named}, which does not exist.",
                        f"Correct it in {path}; jobs find nothing there.",
                    )

    def token(self) -> Iterator[Finding]:
        path = self._paths.token
        try:
            text = path.read_text("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            if self._paths.journal.is_dir():
                yield warn(
                    f"{path} is missing, though this home was used.",
                    "`corral up` makes a new one; clients elsewhere then need it.",
                )
            else:
                yield ok("none yet; `corral up` makes it")
            return
        except (OSError, UnicodeDecodeError) as error:
            yield fail(f"{path} cannot be read ({error}).", f"See who owns {path}.")
            return
        if len(text) < 16:
            yield fail(
                f"{path} holds no token.",
                "Remove the file and start the controller again: it makes a new one.",
            )
        else:
            yield ok("readable")

    def disk(self) -> Iterator[Finding]:
        place = self._home.absolute()
        place = next(folder for folder in (place, *place.parents) if folder.exists())
        usage = shutil.disk_usage(place)
        free = f"{usage.free / (1 << 30):.1f} GiB free on the disk of {place}"
        if usage.free < min(FREE_BYTES, usage.total * FREE_SHARE):
            yield fail(f"Only {free}.", "Free some: without room nothing new is accepted.")
        elif usage.free < usage.total * FREE_SHARE:
            yield warn(f"Only {free}.", "Free some before it is full.")
        else:
            yield ok(free)
        if hasattr(os, "statvfs"):
            room = os.statvfs(place)
            if room.f_files and room.f_favail < max(1000, room.f_files * 0.01):
                yield fail(
                    f"Only {room.f_favail:,} inodes are left on the disk of {place}.",
                    "Remove many small files there.",
                )

    def journal(self) -> Iterator[Finding]:
        folder = self._paths.journal
        path = folder / "corral.db"
        if not path.exists():
            if (folder / "mark").exists() and (folder / "mark").stat().st_size:
                yield fail(f"{path} is gone, its mark is there.", _MEND)
            else:
                yield ok("none yet")
            return
        if not (folder / "mark").exists():
            yield fail(f"The mark {folder / 'mark'} is missing.", _MEND)
            return
        deadline = time.monotonic() + self._look_s
        try:
            journal = Journal(folder)
        except HomeUnusable as error:
            yield fail(error.message, "Choose another CORRAL_HOME, or restore a backup.")
            return
        except CorralError as error:
            yield fail(error.message, _MEND)
            return
        last, newest, whole = 0, 0.0, True
        try:
            journal.interrupt_when(lambda: time.monotonic() > deadline)
            for record in verified(journal):
                last, newest = record.seq, max(newest, record.at)
                if time.monotonic() > deadline:
                    whole = False
                    break
        except JournalDamaged as error:
            if time.monotonic() <= deadline:
                yield fail(error.message, _MEND)
                return
            whole = False
        finally:
            journal.close()
        size = path.stat().st_size / (1 << 20)
        if whole:
            yield ok(f"{last:,} records, all whole; {size:.1f} MiB")
        else:
            yield ok(f"whole up to record {last:,}; {size:.1f} MiB, so no further")
        if newest > time.time() + SKEW_S:
            yield warn(
                f"The journal is {newest - time.time():.0f} s ahead of this machine's clock.",
                "Set the clock, before it makes waits and ids odd.",
                check="clock",
            )

    def leftovers(self) -> Iterator[Finding]:
        """What a killed process left half written; nothing refers to it."""
        if not self._home.is_dir():
            return
        before = time.time() - OLD_S
        hidden = re.compile(r"\.[\w.]+\.[0-9a-f]{8}")
        found = [
            path
            for folder in (self._home, self._paths.worker, self._paths.blobs / "incoming")
            if folder.is_dir()
            for path in folder.iterdir()
            if (folder.name == "incoming" or hidden.fullmatch(path.name))
            and path.lstat().st_mtime < before
        ]
        if found:
            size = sum(path.lstat().st_size for path in found)
            yield warn(
                f"{len(found)} half-written files of an hour ago or more, {size:,} bytes, the "
                f"first is {found[0]}.",
                "While the controller is down, remove them.",
            )
        else:
            yield ok("none")


_MEND = "Restore a backup, or run `corral repair`: it says what it would do before it does it."


def _line_of(path: Path, message: str) -> int | None:
    if told := re.search(r"line (\d+)", message):
        return None if path.name in message and "YAML" in message else int(told[1])
    if str(path) not in message:
        return None
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    named = re.search(r"setting '([\w.]+)'|: ([\w.]+) = ", message)
    key = (named[1] or named[2]).rpartition(".")[2] if named else ""
    for number, line in enumerate(lines, 1):
        if key and re.match(rf"[\s{{]*{re.escape(key)}\s*:", line):
            return number
    return None
