"""A disk that loses power: what a recorded run had made durable by each of its syncs.

Strict POSIX: bytes are durable once their file is synced, names once their folder is. Everything
else is gone after the cut or, in the torn variant, survives by chance and in pieces.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash import tracing

SECTOR = 512
SURVIVES = 0.5


class Op(NamedTuple):
    """One thing that happened to the disk, or a line that was said."""

    kind: str
    path: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


class Recorder:
    """Watches a run and writes down what it does below a folder, in order."""

    def __init__(self, below: Path, voice: Callable[[tracing.Call], bool]) -> None:
        self._below = str(below)
        self._voice = voice
        self._begun: dict[int, list[Op]] = {}
        self.ops: list[Op] = []

    def entered(self, call: tracing.Call) -> bool:
        self._begun[call.tid] = list(self._meaning(call))
        return False

    def left(self, call: tracing.Call, value: int) -> None:
        for op in self._begun.pop(call.tid, ()):
            if value >= 0:
                cut = op._replace(data=op.data[:value]) if op.kind == "write" else op
                self.ops.append(cut)

    def _meaning(self, call: tracing.Call) -> Iterator[Op]:
        name, args = call.name, call.args
        if name == "write" and self._voice(call):
            yield Op("said", data=call.memory(args[1], args[2]))
            return
        paths = tracing.target(call)
        if not paths or not all(path.startswith(self._below) for path in paths):
            return
        path = paths[0]
        if name in ("open", "openat"):
            flags = args[1] if name == "open" else args[2]
            if not os.path.lexists(path):
                yield Op("create", path)
            elif flags & os.O_TRUNC:
                yield Op("truncate", path)
        elif name in ("mkdir", "mkdirat"):
            yield Op("mkdir", path)
        elif name in ("unlink", "unlinkat", "rmdir"):
            yield Op("unlink", path)
        elif name.startswith("rename"):
            yield Op("rename", path, paths[1])
        elif name == "ftruncate":
            yield Op("truncate", path, offset=args[1])
        elif name in ("fsync", "fdatasync"):
            yield Op("sync", path)
        elif name == "write":
            yield Op("write", path, "", call.position(args[0]), call.memory(args[1], args[2]))
        elif name == "pwrite64":
            yield Op("write", path, "", args[3], call.memory(args[1], args[2]))
        else:
            raise NotImplementedError(f"{name} is not modelled: {path}")


class _File:
    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.pending: list[Op] = []

    def change(self, op: Op) -> None:
        self.pending.append(op)
        _apply(self.content, op)

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def survived(self, dice: random.Random | None) -> bytes:
        if dice is None or not self.pending:
            return self.durable
        content = bytearray(self.durable)
        for op in self.pending:
            if dice.random() < SURVIVES:
                if op.kind == "write" and dice.random() < 0.25:
                    # Torn: whole sectors of the disk, not of the write, are old or new.
                    first = SECTOR - op.offset % SECTOR
                    cuts = [0, *range(first, len(op.data), SECTOR)]
                    op = op._replace(data=op.data[: dice.choice(cuts)])
                _apply(content, op)
        return bytes(content)


def _apply(content: bytearray, op: Op) -> None:
    if op.kind == "truncate":
        del content[op.offset :]
        content.extend(bytes(op.offset - len(content)))
        return
    end = op.offset + len(op.data)
    if not op.data:
        return
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[op.offset : end] = op.data


Names = dict[str, "_File | _Folder"]


class _Folder:
    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.pending: list[dict[str, _File | _Folder | None]] = []
        """Each change as the names it set or removed, at once."""

    def change(self, names: dict[str, _File | _Folder | None]) -> None:
        self.pending.append(names)
        _rename(self.names, names)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def survived(self, dice: random.Random | None) -> Names:
        names = dict(self.durable)
        if dice is not None:
            for change in self.pending:
                if dice.random() < SURVIVES:
                    _rename(names, change)
        return names


def _rename(names: Names, change: dict[str, _File | _Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """Plays a recording; at any moment says what a power cut would leave."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._top = _Folder()

    def play(self, op: Op) -> None:
        if op.kind in ("create", "mkdir"):
            node: _File | _Folder = _File() if op.kind == "create" else _Folder()
            self._parent(op.path).change({os.path.basename(op.path): node})
        elif op.kind == "unlink":
            self._parent(op.path).change({os.path.basename(op.path): None})
        elif op.kind == "rename":
            self._move(op.path, op.other)
        elif op.kind == "sync":
            self._node(op.path).sync()
        else:
            node = self._node(op.path)
            assert isinstance(node, _File)
            node.change(op)

    def _move(self, old: str, new: str) -> None:
        node = self._node(old)
        here, there = self._parent(old), self._parent(new)
        if here is there:
            here.change({os.path.basename(old): None, os.path.basename(new): node})
        else:
            there.change({os.path.basename(new): node})
            here.change({os.path.basename(old): None})

    def _parent(self, path: str) -> _Folder:
        parent = self._node(os.path.dirname(path))
        assert isinstance(parent, _Folder)
        return parent

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self._top
        inside = os.path.relpath(path, self._root)
        for name in () if inside == "." else inside.split(os.sep):
            assert isinstance(node, _Folder), path
            node = node.names[name]
        return node

    def after_cut(self, dice: random.Random | None = None) -> dict[str, bytes | None]:
        """Every path that is left, with its bytes; folders have none. SQLite's shared memory is
        never on a disk in any order that means something, so it is gone."""
        left: dict[str, bytes | None] = {}

        def walk(folder: _Folder, inside: str) -> None:
            for name, node in sorted(folder.survived(dice).items()):
                path = os.path.join(inside, name)
                if isinstance(node, _Folder):
                    left[path] = None
                    walk(node, path)
                elif not name.endswith("-shm"):
                    left[path] = node.survived(dice)

        walk(self._top, "")
        return left


def write(left: dict[str, bytes | None], root: Path) -> None:
    for inside, data in left.items():
        path = root / inside
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(data)


def digest(left: dict[str, bytes | None]) -> str:
    found = hashlib.sha256()
    for path, data in left.items():
        size = -1 if data is None else len(data)
        found.update(f"{path}\0{size}\0".encode() + (data or b""))
    return found.hexdigest()
