"""The models on this worker's disk, looked for beside the work: names at once, digests as they get
known. Nobody waits for either, and what was read once is not read again until it changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral.agent.beside import beside
from corral.core.model import SUFFIXES, Model, model_name

log = structlog.get_logger("corral.agent.models")

EVERY_S = 60.0
MOST = 10_000
"""Models that are told of; a folder with more is not meant as one of models."""
TELL_S = 5.0
"""Digests that get known are told together this often."""
CHUNK = 8 << 20
_MARKS = ("model_index.json", "config.json")
"""A folder with one of these is one model."""
_HUB = re.compile(r"models--(?P<name>[^/]+)/snapshots/[^/]+")
"""How the Hugging Face hub keeps them."""


class Known(Struct, frozen=True, array_like=True):
    """The digest of a file that had this size and time."""

    size: int
    mtime_ns: int
    sha256: str


class Found(Struct, frozen=True):
    name: str
    files: tuple[str, ...]
    root: str
    """The folder of a model that has several files; empty for one that is a file."""


class ModelFiles:
    def __init__(
        self,
        paths: Sequence[str],
        kept: Path,
        changed: Callable[[], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._paths, self._kept, self._every_s = tuple(paths), kept, every_s
        self._changed = changed
        self._known = _read(kept)
        self._stopped = threading.Event()
        self._said: set[str] = set()
        self.models: tuple[Model, ...] = ()

    async def run(self) -> None:
        """Until cancelled. Without folders there is nothing to do."""
        loop = asyncio.get_running_loop()
        try:
            while self._paths:
                found, models = await beside(self._survey, "models")
                self._tell(models)
                told_at = loop.time()
                for one in found:
                    if not models[one.name].sha256:
                        models[one.name] = await beside(partial(self._hash, one), "models")
                        if loop.time() - told_at > TELL_S:
                            self._tell(models)
                            told_at = loop.time()
                self._tell(models)
                await beside(self._keep, "models")
                await asyncio.sleep(self._every_s)
        finally:
            self._stopped.set()

    def _tell(self, models: Mapping[str, Model]) -> None:
        found = tuple(models.values())
        if found != self.models:
            self.models = found
            self._changed()

    # --- in the thread ---

    def _survey(self) -> tuple[list[Found], dict[str, Model]]:
        found = self._scan()
        files = {file for one in found for file in one.files}
        for file in self._known.keys() - files:
            del self._known[file]
        return found, {one.name: self._model(one) for one in found}

    def _scan(self) -> list[Found]:
        found: dict[str, Found] = {}
        for path in self._paths:
            if not os.path.isdir(path):
                self._say("model_path_missing", path)
                continue
            for one in _models_in(path):
                found.setdefault(one.name, one)
                if len(found) >= MOST:
                    self._say("too_many_models", path)
                    return list(found.values())
        return list(found.values())

    def _hash(self, one: Found) -> Model:
        for file in one.files:
            try:
                now = os.stat(file)
                if self._known_digest(file, now) is None:
                    digest = self._read_through(file)
                    if digest is None:
                        break
                    self._known[file] = Known(now.st_size, now.st_mtime_ns, digest)
            except OSError as error:
                self._say("model_unreadable", f"{file}: {error.strerror}")
                break
        return self._model(one)

    def _keep(self) -> None:
        encoded = msgspec.json.encode(self._known)
        with suppress(OSError):
            if not self._kept.exists() or self._kept.read_bytes() != encoded:
                part = self._kept.with_name(f"{self._kept.name}.part")
                part.write_bytes(encoded)
                part.replace(self._kept)

    def _read_through(self, file: str) -> str | None:
        digest = hashlib.sha256()
        with open(file, "rb", buffering=0) as opened:
            while chunk := opened.read(CHUNK):
                if self._stopped.is_set():
                    return None
                digest.update(chunk)
        return digest.hexdigest()

    def _known_digest(self, file: str, now: os.stat_result) -> str | None:
        known = self._known.get(file)
        if known is None or (known.size, known.mtime_ns) != (now.st_size, now.st_mtime_ns):
            return None
        return known.sha256

    def _model(self, one: Found) -> Model:
        size, lines = 0, []
        for file in one.files:
            try:
                now = os.stat(file)
            except OSError:
                continue
            size += now.st_size
            digest = self._known_digest(file, now)
            if digest is not None:
                lines.append(f"{os.path.relpath(file, one.root or None)} {digest}\n")
        if len(lines) < len(one.files) or not lines:
            return Model(one.name, size)
        if not one.root:
            return Model(one.name, size, lines[0].split()[-1])
        listed = "".join(sorted(lines)).replace(os.sep, "/")
        return Model(one.name, size, hashlib.sha256(listed.encode()).hexdigest())

    def _say(self, what: str, about: str) -> None:
        if about not in self._said:
            self._said.add(about)
            log.warning(what, about=about)


def _read(kept: Path) -> dict[str, Known]:
    try:
        return msgspec.json.decode(kept.read_bytes(), type=dict[str, Known])
    except (OSError, msgspec.MsgspecError):
        return {}


def _models_in(root: str) -> Iterator[Found]:
    """Files that hold models by their own name, folders that are one by their way from here."""
    seen: set[str] = set()
    folders = [root]
    while folders:
        folder = folders.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue  # links may lead in circles
        seen.add(real)
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        files = [entry for entry in inside if entry.is_file()]
        if folder != root and any(entry.name in _MARKS for entry in files):
            paths = tuple(sorted(_files_below(folder)))
            yield Found(_folder_name(os.path.relpath(folder, root)), paths, folder)
            continue
        for entry in files:
            if entry.name.lower().endswith(SUFFIXES):
                yield Found(model_name(entry.name), (entry.path,), "")
        below = [entry.path for entry in inside if entry.is_dir() and entry.name[0] != "."]
        folders.extend(reversed(below))


def _files_below(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(path, name)


def _folder_name(way: str) -> str:
    way = way.replace(os.sep, "/")
    hub = _HUB.fullmatch(way)
    return hub["name"].replace("--", "/") if hub else way
