"""A disk that loses power: what a recorded run had made durable by each of its syncs.

Strict POSIX: bytes are durable once their file is synced, names once their folder is. Everything
else is gone after the cut or, in the torn variant, survives by chance and in pieces. Programs that
the watched one starts are not watched: what they wrote is found, unsynced, when it next moves or
syncs what they wrote.
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
        self._known: set[str] = {str(below)}
        self.ops: list[Op] = []

    def entered(self, call: tracing.Call) -> bool:
        self._begun[call.tid] = list(self._meaning(call))
        return False

    def left(self, call: tracing.Call, value: int) -> None:
        for op in self._begun.pop(call.tid, ()):
            if value >= 0:
                cut = op._replace(data=op.data[:value]) if op.kind == "write" else op
                self._append(cut)

    def _append(self, op: Op) -> None:
        self.ops.append(op)
        if op.kind in ("create", "mkdir", "link"):
            self._known.add(op.path)
        elif op.kind == "unlink":
            self._known.discard(op.path)
        elif op.kind == "rename":
            inside = f"{op.path}/"
            moved = {one for one in self._known if one == op.path or one.startswith(inside)}
            self._known -= moved
            self._known |= {op.other + one[len(op.path) :] for one in moved}

    def _is_others(self, path: str) -> bool:
        inside = path.startswith(f"{self._below}/")
        return inside and path not in self._known and os.path.lexists(path)

    def _find(self, path: str) -> None:
        """What others made there."""
        if os.path.islink(path):
            if path not in self._known:
                self._append(Op("link", path, os.readlink(path)))
        elif os.path.isdir(path):
            if path not in self._known:
                self._append(Op("mkdir", path))
            for name in sorted(os.listdir(path)):
                self._find(os.path.join(path, name))
        elif os.path.isfile(path) and path not in self._known:
            self._append(Op("create", path))
            self._append(Op("write", path, data=Path(path).read_bytes()))

    def _meaning(self, call: tracing.Call) -> Iterator[Op]:
        name, args = call.name, call.args
        if name == "write" and self._voice(call):
            yield Op("said", data=call.memory(args[1], args[2]))
            return
        paths = tracing.target(call)
        if not paths or not all(f"{path}/".startswith(f"{self._below}/") for path in paths):
            return
        path = paths[0]
        above = [str(one) for one in (*reversed(Path(path).parents), path)]
        if unknown := next((one for one in above if self._is_others(one)), ""):
            self._find(unknown)
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
            self._find(path)
            yield Op("rename", path, paths[1])
        elif name == "syncfs":
            self._find(self._below)
            yield Op("syncfs", self._below)
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


Names = dict[str, "_File | _Folder | _Link"]
Left = dict[str, bytes | str | None]
"""Files by their bytes, links by where they lead, folders without either."""


class _Link:
    """As durable as its name."""

    def __init__(self, target: str) -> None:
        self.target = target

    def sync(self) -> None:
        pass


class _Folder:
    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.pending: list[dict[str, _File | _Folder | _Link | None]] = []
        """Each change as the names it set or removed, at once."""

    def change(self, names: dict[str, _File | _Folder | _Link | None]) -> None:
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


def _rename(names: Names, change: dict[str, _File | _Folder | _Link | None]) -> None:
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
            made = _File() if op.kind == "create" else _Folder()
            self._parent(op.path).change({os.path.basename(op.path): made})
        elif op.kind == "link":
            self._parent(op.path).change({os.path.basename(op.path): _Link(op.other)})
        elif op.kind == "unlink":
            self._parent(op.path).change({os.path.basename(op.path): None})
        elif op.kind == "rename":
            self._move(op.path, op.other)
        elif op.kind == "sync":
            self._node(op.path).sync()
        elif op.kind == "syncfs":
            _sync_all(self._top)
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

    def _node(self, path: str) -> _File | _Folder | _Link:
        node: _File | _Folder | _Link = self._top
        inside = os.path.relpath(path, self._root)
        for name in () if inside == "." else inside.split(os.sep):
            assert isinstance(node, _Folder), path
            node = node.names[name]
        return node

    def after_cut(self, dice: random.Random | None = None) -> Left:
        """Every path that is left, with its bytes; folders have none. SQLite's shared memory is
        never on a disk in any order that means something, so it is gone."""
        left: Left = {}

        def walk(folder: _Folder, inside: str) -> None:
            for name, node in sorted(folder.survived(dice).items()):
                path = os.path.join(inside, name)
                if isinstance(node, _Folder):
                    left[path] = None
                    walk(node, path)
                elif isinstance(node, _Link):
                    left[path] = node.target
                elif not name.endswith("-shm"):
                    left[path] = node.survived(dice)

        walk(self._top, "")
        return left


def _sync_all(folder: _Folder) -> None:
    folder.sync()
    for node in folder.names.values():
        if isinstance(node, _Folder):
            _sync_all(node)
        else:
            node.sync()


def write(left: Left, root: Path) -> None:
    for inside, data in left.items():
        path = root / inside
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        elif isinstance(data, str):
            path.symlink_to(data)
        else:
            path.write_bytes(data)


def digest(left: Left) -> str:
    found = hashlib.sha256()
    for path, data in left.items():
        kind, content = type(data).__name__, data or b""
        found.update(f"{path}\0{kind}\0{len(content)}\0".encode())
        found.update(content.encode() if isinstance(content, str) else content)
    return found.hexdigest()
