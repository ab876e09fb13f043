"""Models on this worker's disk, looked for beside the work: names at once, digests once read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from corral.agent.system import beside
from corral.core.worker import MOST_MODELS, Model
from corral.home import write_durably
from corral.runtime.files.models import FoundModel, folder_digest, models_in

log = structlog.get_logger("corral.agent.models")

EVERY_S = 60.0
TELL_S = 5.0
"""Digests that get known are told together this often."""
CHUNK = 8 << 20


class Known(Struct, frozen=True, array_like=True):
    """The digest of a file that had this size and time."""

    size: int
    mtime_ns: int
    sha256: str


class ModelFiles:
    def __init__(self, paths: Sequence[str], kept: Path, changed: Callable[[], None]) -> None:
        self._paths, self._kept = tuple(paths), kept
        self._changed = changed
        self._known = _read(kept)
        self._stopped = threading.Event()
        self._said: set[str] = set()
        self.models: tuple[Model, ...] = ()

    async def run(self) -> None:
        """Until cancelled. Without folders there is nothing to do."""
        try:
            while self._paths:
                try:
                    await self.look()
                except Exception as error:
                    self._say("models_not_read", repr(error))
                await asyncio.sleep(EVERY_S)
        finally:
            self._stopped.set()

    async def look(self) -> None:
        clock = asyncio.get_running_loop().time
        found, models = await beside(self._survey, "models")
        self._tell(models)
        told_at = clock()
        for one in found:
            if not models[one.name].sha256:
                models[one.name] = await beside(partial(self._hash, one), "models")
                if clock() - told_at > TELL_S:
                    self._tell(models)
                    told_at = clock()
        self._tell(models)
        await beside(self._keep, "models")

    def _tell(self, models: Mapping[str, Model]) -> None:
        found = tuple(models.values())
        if found != self.models:
            self.models = found
            self._changed()

    # --- in the thread ---

    def _survey(self) -> tuple[list[FoundModel], dict[str, Model]]:
        found = self._scan()
        files = {file for one in found for file in one.files}
        for file in self._known.keys() - files:
            del self._known[file]
        return found, {one.name: self._model(one) for one in found}

    def _scan(self) -> list[FoundModel]:
        found: dict[str, FoundModel] = {}
        for path in self._paths:
            if not os.path.isdir(path):
                self._say("model_path_missing", path)
                continue
            for one in models_in(path):
                found.setdefault(one.name, one)
                if len(found) >= MOST_MODELS:
                    self._say("too_many_models", path)
                    return list(found.values())
        return list(found.values())

    def _hash(self, one: FoundModel) -> Model:
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
                write_durably(self._kept, encoded)

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

    def _model(self, one: FoundModel) -> Model:
        size, digests = 0, {}
        for file in one.files:
            try:
                now = os.stat(file)
            except OSError:
                continue
            size += now.st_size
            digest = self._known_digest(file, now)
            if digest is not None:
                digests[file] = digest
        if len(digests) < len(one.files) or not digests:
            return Model(one.name, size)
        sha256 = folder_digest(one.root, digests.items()) if one.root else digests[one.files[0]]
        return Model(one.name, size, sha256)

    def _say(self, what: str, about: str) -> None:
        if about not in self._said:
            self._said.add(about)
            log.warning(what, about=about)


def _read(kept: Path) -> dict[str, Known]:
    try:
        return msgspec.json.decode(kept.read_bytes(), type=dict[str, Known])
    except (OSError, msgspec.MsgspecError):
        return {}
