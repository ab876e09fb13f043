"""A controller's home on disk: where everything is, and that only one controller uses it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from corral.core.errors import HomeUnusable
from corral.locks import lock_file
from corral.permissions import READ_FILE, USE_FILE


class KeptFolder(NamedTuple):
    """A folder, and how deep below it; what its owner must be able to do with files there."""

    folder: Path
    depth: int
    files: int = READ_FILE


class Home:
    """Paths of a home, made and locked for one controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.token = path / "token"
        self.tokens = path / "tokens.json"
        self.queue = path / "queue.json"
        self.roster = path / "workers.json"
        self.tls = path / "tls"
        self.login = path / "login.json"
        self.transfer_key = path / "transfer.key"
        self.secrets = path / "secrets"
        self.notify = path / "notify.json"
        self.learning = path / "learning"
        self.presets = path / "presets"
        self.controller = path / "controller.json"
        self.settings = path / "settings.json"
        """Those that a running controller began with, and where each came from."""
        self.journal = path / "journal"
        self.repaired_journal = path / "journal.new"
        """What `corral repair` writes, until it takes the damaged one's place."""
        self.blobs = path / "blobs"
        self.spool = path / "spool"
        self.log = path / "log"
        self.backups = path / "backups"
        self.restore = path / "restore"
        self.log_file = self.log / "controller.log"
        self.worker = path / "worker"
        self.agent = path / "worker" / "agent.json"
        self.processes = path / "processes"
        self.private = (
            self.token,
            self.tokens,
            self.roster,
            self.transfer_key,
            self.secrets,
            self.notify,
            self.login,
            self.agent,
            self.tls / "key.pem",
        )
        self.kept_open = (
            KeptFolder(path, 1),
            KeptFolder(self.journal, 1, USE_FILE),
            KeptFolder(self.processes, 1, USE_FILE),
            KeptFolder(self.log, 1, USE_FILE),
            *(
                KeptFolder(folder, 1)
                for folder in (self.blobs, self.tls, self.learning, self.presets)
            ),
        )
        self._lock_fd: int | None = None

    def take(self) -> None:
        """Makes the folders and holds the lock until `release`, or the end of the process."""
        try:
            self._make()
            lock_fd = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise HomeUnusable(
                f"The home {self.path} cannot be written ({error.strerror}). Choose another one "
                "with CORRAL_HOME, or mend its permissions."
            ) from error
        for pause_s in (0.01, 0.04, 0.1, 0.0):
            if lock_file(lock_fd):
                break
            time.sleep(pause_s)  # an agent may be looking whether anybody has it
        else:
            owner = self.lock.read_text(errors="replace").strip()
            os.close(lock_fd)
            raise HomeUnusable(
                f"Another controller (pid {owner or '?'}) uses the home {self.path}. Stop it with "
                "`corral down`, or choose another CORRAL_HOME."
            )
        self._lock_fd = lock_fd
        self._finish_repair()
        os.ftruncate(lock_fd, 0)
        os.lseek(lock_fd, 0, os.SEEK_SET)
        os.write(lock_fd, f"{os.getpid()}\n".encode())

    def _make(self) -> None:
        make_folder(self.path)
        for folder in (self.journal, self.blobs, self.spool, self.log, self.worker):
            folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.path)

    def _finish_repair(self) -> None:
        """Of a repair killed after it took the damaged journal away: the new one is whole by then,
        and an empty one would forget every job. A restore that was killed brings its own."""
        if self.restore.exists() or not self.repaired_journal.is_dir():
            return
        if not any(self.journal.iterdir()):
            self.journal.rmdir()
            self.repaired_journal.rename(self.journal)
            sync_folder(self.path)

    def close_to_others(self) -> list[str]:
        """Mends the modes of private files, and returns which were wrong: a job cannot open those,
        but the kernel lets it change the modes of its user's files."""
        mended = []
        for path in self.private:
            with contextlib.suppress(OSError):
                found = path.lstat().st_mode
                if stat.S_ISREG(found) and (found & 0o077 or found & 0o600 != 0o600):
                    path.chmod(0o600)
                    mended.append(str(path))
        return mended

    def release(self) -> None:
        if self._lock_fd is not None:
            self.controller.unlink(missing_ok=True)
            self.settings.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = None


def write_private_json(path: Path, value: dict[str, Any]) -> None:
    """Replaces the file at once, readable by its owner alone."""
    write_durably(path, json.dumps(value).encode())


def write_durably(path: Path, data: bytes | Iterable[bytes], mode: int = 0o600) -> None:
    """Replaces the file at once: after a power cut it is the old one or the new one, whole; once
    this returns it is the new one."""
    incoming = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(incoming, path)
    except BaseException:  # a full disk, for one, is tried again and again
        incoming.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """A folder of its owner's, whose name outlives a power cut like what is promised inside it."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in new or (path,):
        # A parent that may be passed through but not read was there before us.
        with contextlib.suppress(PermissionError):
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable, where the platform has such a thing."""
    if sys.platform != "win32":
        _sync(path, os.O_RDONLY)


def _sync(path: Path | str, how: int) -> None:
    fd = os.open(path, how)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(folder: Path) -> None:
    """Makes everything below a folder durable: by one call for the whole disk, or file by file
    where the platform has no such thing."""
    if sys.platform == "linux" and _syncfs(folder):
        return
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                # Windows flushes only what may be written to.
                _sync(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
        sync_folder(Path(place))


def _syncfs(folder: Path) -> bool:
    """Whether the kernel did it; OSError where the disk failed."""
    import ctypes
    import errno

    fd = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0:
            return True
        error = ctypes.get_errno()
    except AttributeError:  # a C library without it
        return False
    finally:
        os.close(fd)
    if error == errno.ENOSYS:
        return False
    raise OSError(error, os.strerror(error), str(folder))


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file, or an empty one where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
