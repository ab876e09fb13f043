"""The vault: named values that jobs may ask for, in a file of the home that only its owner reads.

Values leave it only towards an attempt that names them. They are never journaled, logged or shown;
a key beside the file would not make it safer, so there is none.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.errors import Forbidden, HomeUnusable, InvalidSecret, SecretNotFound
from corral.home import write_private_json
from corral.runtime.channels.redaction import SHORTEST, lines_of

MAX_SECRETS = 256
MAX_VALUE = 16 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TAKEN = re.compile(
    r"CORRAL_.*|LD_.*|PYTHON.*|PATH|HOME|TMPDIR|VIRTUAL_ENV|(CUDA|HIP)_VISIBLE_DEVICES"
)
"""Variables that make a job's process what it is."""
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Half a surrogate pair cannot be written as UTF-8."""


class KeptSecret(Struct, frozen=True, forbid_unknown_fields=True):
    value: str
    set_at: float

    def __repr__(self) -> str:
        return f"KeptSecret(set_at={self.set_at!r})"


class Vault:
    def __init__(self, path: Path, *, kept_back: Iterable[str] = ()) -> None:
        self._path = path
        self._kept_back = frozenset(kept_back)
        """Names that are the controller's own: no job may have them."""
        self._kept = _read(path)
        self._writing = asyncio.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def listed(self) -> list[tuple[str, float]]:
        """Names and when each was set, by name."""
        return [(name, self._kept[name].set_at) for name in sorted(self._kept)]

    def check(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._kept:
                raise SecretNotFound(
                    f"There is no secret {name[:128]!r}. Set it with `corral secret set "
                    f"{name[:128]}`; `corral secret list` shows which there are."
                )

    def check_for_job(self, names: Iterable[str]) -> None:
        """The same for a job, which may not have all of them."""
        for name in names:
            if name in self._kept_back:
                raise Forbidden(
                    f"The secret {name[:128]!r} opens the bucket of assets and is the controller's "
                    "own. Leave it out; inputs and artifacts reach the bucket without it."
                )
        self.check(names)

    def values(self, names: Iterable[str]) -> dict[str, str]:
        names = tuple(names)
        self.check(names)
        return {name: self._kept[name].value for name in names}

    async def set(self, name: str, value: str) -> float:
        """Durable when this returns; when it was set."""
        _check(name, value)
        async with self._writing:
            if name not in self._kept and len(self._kept) >= MAX_SECRETS:
                raise InvalidSecret(f"There are {MAX_SECRETS} secrets already; remove one first.")
            set_at = time.time()
            await self._write({**self._kept, name: KeptSecret(value, set_at)})
            return set_at

    async def remove(self, name: str) -> float:
        async with self._writing:
            self.check([name])
            set_at = self._kept[name].set_at
            await self._write({key: one for key, one in self._kept.items() if key != name})
            return set_at

    async def _write(self, kept: dict[str, KeptSecret]) -> None:
        written = {"version": 1, "secrets": msgspec.to_builtins(kept)}
        await asyncio.to_thread(write_private_json, self._path, written)
        self._kept = kept


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or _TAKEN.fullmatch(name):
        raise InvalidSecret(
            f"{name[:128]!r} cannot be a secret's name: it becomes a variable such as HF_TOKEN, "
            "and Corral's own and those of the system are taken."
        )
    if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE:
        raise InvalidSecret(f"The value has more than {MAX_VALUE:,} bytes.")
    if _UNWRITABLE.search(value):
        raise InvalidSecret("The value is text without NUL characters.")
    if not lines_of(value):
        raise InvalidSecret(
            f"The value is shorter than {SHORTEST} characters (in each of its lines). That is too "
            "short to be found and hidden in what a job prints; give it by `env` instead."
        )


class _File(Struct, forbid_unknown_fields=True):
    version: int
    secrets: dict[str, KeptSecret]


def _read(path: Path) -> dict[str, KeptSecret]:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            os.chmod(path, 0o600)
        return msgspec.json.decode(path.read_bytes(), type=_File).secrets
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HomeUnusable(
            f"The secrets in {path} cannot be read ({error}). Restore the file, or move it away "
            "and set them again with `corral secret set`."
        ) from error
