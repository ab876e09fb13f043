"""The caller's own modules and packages on their way along with a function: found, and packed as
one zip that is the same for the same files.

What was packed is kept for as long as none of its files and folders changes. To look takes a moment
too, so it is done so rarely that it never takes more than a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from corral.core.errors import InvalidJob, TooLarge
from corral.core.text import size_of
from corral.sdk.submit.ignore_files import CORRAL, GIT, Ignores
from corral.sdk.submit.own_modules import OwnRoot, by_name, is_own_top, own_root
from corral.sdk.submit.packages import IGNORED, is_environment, write_zip

LIMIT = 250_000_000
"""Bytes of all files together, before they are packed."""
MOST_ENTRIES, DEEPEST = 50_000, 100
"""Of files and folders that are looked at, and of folders in each other: links can make more of
them than anybody has."""
LOOKS = 3
LOOK_SHARE = 20
_IMPORT = re.compile(
    rb"(?:^|[:;])[ \t]*(?:from[ \t]+([^\W\d]\w*)|import[ \t]+([^\W\d][^\n;#]*))", re.MULTILINE
)
_EXTENSIONS = (".so", ".pyd")
Stamp = tuple[int, int, int]


class CodeFile(NamedTuple):
    name: str
    path: str


class OwnCode:
    """One zip, and what to look at to know that it is still the one."""

    def __init__(self, names: Iterable[str], files: list[CodeFile], stamps: dict[str, Stamp]):
        self.names, self.count = sorted(names), len(files)
        packed = [(one.name, Path(one.path)) for one in files]
        self.data = write_zip(packed, ", ".join(self.names))
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self._stamps = stamps
        self._look_again = 0.0

    def is_current(self) -> bool:
        begun = time.monotonic()
        if begun < self._look_again:
            return True
        same = all(_stamp(path) == stamp for path, stamp in self._stamps.items())
        now = time.monotonic()
        self._look_again = now + (now - begun) * LOOK_SHARE
        return same


_packed: dict[object, OwnCode] = {}
_said: set[str] = set()
_lock = threading.Lock()


class CodeAlong:
    """What of the caller's own goes along with one call: what its pickles name and what they
    import; or, where the caller says it, just that."""

    def __init__(self, said: object = None) -> None:
        self._said = None if said is None else _said_roots(said)
        self._allowed = None if self._said is None else {root.name for root in self._said}
        self.met: frozenset[str] = frozenset()

    def could_bring(self, module: str) -> bool:
        name = module.partition(".")[0]
        return own_root(name) is not None and (self._allowed is None or name in self._allowed)

    def brings(self, module: object) -> bool:
        """Whether a worker will find this module by its name; then its files go along."""
        name = by_name(module) if isinstance(module, str) else ""
        if not name or (self._allowed is not None and name not in self._allowed):
            return False
        if name not in self.met:
            self.met |= {name}
        return True

    def meet(self, tops: Iterable[str]) -> bool:
        """Whether any of what code imports when it runs is the caller's own."""
        own = frozenset(name for name in tops if is_own_top(name))
        if self._allowed is None and not own <= self.met:
            self.met |= own
        return bool(own)

    def packed(self) -> OwnCode | None:
        said, met = self._said, self.met
        if said is not None:
            return _kept(tuple(said), lambda: said) if said else None
        return _kept(met, lambda: _closure(met)) if met else None


def along_of(options: Mapping[str, Any]) -> CodeAlong | None:
    """None where the caller wants no code to go along: `code=()`."""
    said = options.get("code")
    return None if said is not None and _is_empty(said) else CodeAlong(said)


def _is_empty(said: object) -> bool:
    return isinstance(said, Sized) and not isinstance(said, str | bytes) and len(said) == 0


def _said_roots(said: object) -> list[OwnRoot]:
    if isinstance(said, str | os.PathLike | ModuleType) or not isinstance(said, Iterable):
        raise InvalidJob(f"code is a list of folders, files or modules, as ['lib']; got {said!r}.")
    return [root for one in said for root in _roots_of(one)]


def _kept(key: object, roots: Callable[[], Iterable[OwnRoot]]) -> OwnCode:
    with _lock:
        known = _packed.get(key)
        if known is None or not known.is_current():
            known = _packed[key] = _packed_again(roots)
        if known.sha256 not in _said:
            _said.add(known.sha256)
            _say(known)
        return known


def _packed_again(roots: Callable[[], Iterable[OwnRoot]]) -> OwnCode:
    """Files that an editor or a checkout takes away meanwhile are no reason to fail."""
    for _ in range(LOOKS - 1):
        with contextlib.suppress(InvalidJob):
            return _pack(list(roots()))
    return _pack(list(roots()))


def _say(code: OwnCode) -> None:
    files = "1 file" if code.count == 1 else f"{code.count:,} files"
    names, more = ", ".join(code.names[:5]), len(code.names) - 5
    names += f" and {more} more" if more > 0 else ""
    if sys.stderr is not None:
        size = size_of(len(code.data))
        print(f"corral: sent along: {names} ({files}, {size})", file=sys.stderr, flush=True)


# --- which modules and packages ------------------------------------------------------------------


def _closure(names: Iterable[str]) -> Iterator[OwnRoot]:
    todo, met = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in met:
            continue
        met.add(name)
        root = own_root(name)
        if root is None:
            continue
        yield root
        for file in _Walk([root]).files:
            if file.path.endswith(".py"):
                todo += _imported(_read(file.path))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> InvalidJob:
    return InvalidJob(
        f"{path!r} cannot be read: {error.strerror}. Mend or remove it, name what stays in a "
        f"{CORRAL} file beside it, or say yourself what goes, code=[…]."
    )


def _imported(source: bytes) -> Iterator[str]:
    """The tops of what a module's text imports, at its start or later."""
    for one, several in _IMPORT.findall(source):
        for part in (one or several).split(b","):
            name = part.split(b".")[0].split()
            if name and (text := name[0].decode(errors="replace")).isidentifier():
                yield text


def _roots_of(said: Any) -> list[OwnRoot]:
    if isinstance(said, ModuleType):
        name = said.__name__.partition(".")[0]
        top = sys.modules.get(name, said)
        folders = tuple(Path(folder) for folder in getattr(top, "__path__", ()))
        file = getattr(top, "__file__", None)
        if not folders and (file is None or name == "__main__"):
            raise InvalidJob(f"code: the module {name!r} has no files of its own to send.")
        return [OwnRoot(name, folders or (Path(str(file)),))]
    if not isinstance(said, str | os.PathLike):
        raise InvalidJob(f"code is a list of folders, files or modules; got {said!r} in it.")
    path = Path(said).expanduser()
    if path.is_file() and path.suffix == ".py":
        return [OwnRoot(path.stem, (path.resolve(),))]
    if path.is_dir():
        path = path.resolve()
        if (path / "__init__.py").is_file():
            return [OwnRoot(path.name, (path,))]
        return _inside(path)
    root = own_root(os.fspath(said)) if str(said).isidentifier() else None
    if root is None:
        raise InvalidJob(f"code: {os.fspath(said)!r} is no folder, no .py file and no own module.")
    return [root]


def _inside(folder: Path) -> list[OwnRoot]:
    """A folder that would stand on the path: its modules and packages."""
    found = [
        OwnRoot(one.stem if one.is_file() else one.name, (one,))
        for one in sorted(folder.iterdir())
        if one.suffix == ".py" or (one.name.isidentifier() and one.is_dir())
        if one.name not in IGNORED
    ]
    if not found:
        raise InvalidJob(f"code: there is no module and no package in the folder {folder}.")
    return found


# --- their files ---------------------------------------------------------------------------------


def _pack(roots: list[OwnRoot]) -> OwnCode:
    walk = _Walk(roots)
    files = sorted({file.name: file for file in walk.files}.values())
    return OwnCode({root.name for root in roots}, files, walk.stamps)


class _Walk:
    """All files of some roots, but for what is hidden or left out by an ignore file. What this
    program has imported goes all the same where git alone would leave it out."""

    def __init__(self, roots: Iterable[OwnRoot]) -> None:
        self.files: list[CodeFile] = []
        self.stamps: dict[str, Stamp] = {}
        self._sizes: dict[str, int] = {}
        self._total = self._entries = 0
        for root in roots:
            for place in map(Path.resolve, root.places):
                if place.is_dir():
                    ignores = Ignores.above(place)
                    self._folder(str(place), f"{root.name}/", ignores, frozenset())
                else:
                    self._file(f"{root.name}.py", str(place.with_suffix(".py")))

    def _folder(self, folder: str, prefix: str, ignores: Ignores, above: frozenset[str]) -> None:
        real = os.path.realpath(folder)
        if real in above:
            return  # a link back to a folder that we are inside of
        if len(above) > DEEPEST:
            raise InvalidJob(
                f"{folder} lies in more than {DEEPEST} folders: is that a link's doing?"
            )
        ignores = ignores.inside(folder)
        self.stamps[folder] = _stamp(folder)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise _unreadable(folder, error) from None
        self._entries += len(entries)
        if self._entries > MOST_ENTRIES:
            raise TooLarge(
                f"The own code that would go along, with the folder {folder} in it, has more than "
                f"{MOST_ENTRIES:,} files and folders. Name what stays in a {CORRAL} file beside "
                "it; or say yourself what goes, code=[…], or that nothing does, code=()."
            )
        for entry in entries:
            if entry.name in IGNORED or entry.name.startswith("."):
                if entry.name in (GIT, CORRAL):
                    self.stamps[entry.path] = _stamp(entry.path)
                continue
            is_folder = os.path.isdir(entry.path)  # `entry` raises of a link to itself
            left_out = ignores.leaves_out(entry.path, is_folder=is_folder)
            if is_folder:
                if not left_out and not is_environment(Path(entry.path)):
                    below = f"{prefix}{entry.name}/"
                    self._folder(entry.path, below, ignores, above | {real})
                continue
            goes = not left_out or (left_out == GIT and entry.path in _loaded_files())
            if goes and os.path.isfile(entry.path) and not entry.name.endswith(".pyc"):
                self._file(f"{prefix}{entry.name}", entry.path)

    def _file(self, name: str, path: str) -> None:
        self.stamps[path] = stamp = _stamp(path)
        self.files.append(CodeFile(name, path))
        self._sizes[name] = stamp[1]
        self._total += stamp[1]
        if self._total > LIMIT:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        largest = sorted(self._sizes, key=self._sizes.__getitem__, reverse=True)[:3]
        shown = ", ".join(f"{name} ({size_of(self._sizes[name])})" for name in largest)
        top = largest[0].partition("/")[0]
        return TooLarge(
            f"The own code that would go along, {top}, has more than {size_of(LIMIT)}. Largest "
            f"so far: {shown}. Name what stays in a {CORRAL} file beside it and hand data over as "
            "inputs={…}; or say yourself what goes, code=[…], or that nothing does, code=()."
        )


def _loaded_files() -> set[str]:
    """Asked for what git ignores alone, which is little."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {os.path.realpath(file) for file in files if file}


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
