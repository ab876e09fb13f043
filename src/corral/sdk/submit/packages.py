"""Turning the user's code and data into bytes: pickled functions and arguments, zipped folders.

Code that only the user has must travel whole. Functions and classes of modules outside
site-packages and the standard library are pickled by name where the files of those modules go along
(`own_code`), else by value, and so are such modules themselves where a function refers to one;
everything installed is referred to by name.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import io
import operator
import pickle
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import cloudpickle

from corral.core.errors import InvalidJob, TooLarge
from corral.runtime import plain_asserts
from corral.sdk.files.progress import Progress
from corral.sdk.submit.own_modules import REWRITING, first_party, imports_of, is_rewritten

if TYPE_CHECKING:
    from corral.sdk.submit.own_code import CodeAlong

IGNORED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache"}
    | {".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".DS_Store", ".tox", ".nox"}
)
PACKAGE_LIMIT = 2_000_000_000
_EPOCH = (1980, 1, 1, 0, 0, 0)

_lock = threading.RLock()


# --- functions and values ----------------------------------------------------------------------


def pickle_function(function: Callable[..., Any], along: CodeAlong | None = None) -> bytes:
    """The callable with everything of the user's own code that it refers to, but for what goes
    along as files: that it names, and `along` is told. One that needs nothing of its module goes
    alone, and its worker need not have what that module imports."""
    if not callable(function):
        raise InvalidJob(f"Only functions can be sent, not {type(function).__name__} objects.")
    made_of = _made_of(function) if isinstance(function, FunctionType) else None
    if along is not None and isinstance(function, FunctionType):
        meets = along.meet(_imports(function))
        if made_of is not None and not meets and not _asks_for_files(function):
            along = None
        elif _bring(function, along):
            with contextlib.suppress(pickle.PicklingError, AttributeError):
                return pickle.dumps(function, 5)
    known = _pickles.get(function) if made_of is not None else None
    if known is not None and known[0] == made_of:
        return known[1]
    data = _pickled(function, f"The function {getattr(function, '__name__', function)!r}", along)
    if made_of is not None:
        _pickles[function] = (made_of, data)
    return data


_FILES = frozenset(
    {"__file__", "__package__", "__path__", "__spec__", "__loader__", "importlib", "import_module"}
    | {"__import__", "globals", "eval", "exec"}
)


def _asks_for_files(function: FunctionType) -> bool:
    """Whether it may look for what lies beside it, in words that nobody can follow."""
    return not _FILES.isdisjoint(_names_in(function.__code__))


def _bring(found: FunctionType | type, along: CodeAlong) -> bool:
    """Whether a worker will find it by its name. What was made inside of a function has none, and
    needs its own module only where it looks for it."""
    named = "<" not in found.__qualname__
    if not named and not (isinstance(found, FunctionType) and _asks_for_files(found)):
        return False
    return along.brings(found.__module__) and named


_Cached = functools._lru_cache_wrapper
"""What `functools.cache` and `lru_cache` make: pickled by its name, whether that can be found or
not."""


def _is_found_by_name(cached: _Cached[Any], along: CodeAlong | None) -> bool:
    name = cached.__module__
    if first_party(name) and not (along is not None and along.brings(name)):
        return False
    try:
        found = operator.attrgetter(cached.__qualname__)(sys.modules[name])
    except (AttributeError, KeyError):
        return False
    return found is cached


def _imports(function: FunctionType) -> frozenset[str]:
    found = function.__globals__
    package = found.get("__package__") or (found.get("__name__") or "").rpartition(".")[0]
    return imports_of(function.__code__, package)


_pickles: WeakKeyDictionary[Callable[..., Any], tuple[object, bytes]] = WeakKeyDictionary()
"""For functions called again and again: pickling one takes as long as sending it."""
_FIXED = (type(None), bool, int, float, str, bytes, BuiltinFunctionType)


def _made_of(function: FunctionType) -> object | None:
    """All that a function's pickle depends on, where none of it can change unseen: its code, and
    globals that are constants or installed modules. None for any other function."""
    if function.__closure__ or function.__kwdefaults__ or function.__dict__:
        return None
    parts: list[object] = [function.__code__, function.__name__, function.__module__]
    for default in function.__defaults__ or ():
        if type(default) not in _FIXED:
            return None
        parts += (type(default), default)
    for name in _globals_in(function.__code__):
        if name not in function.__globals__:
            parts.append(name)
            continue
        found = function.__globals__[name]
        if isinstance(found, ModuleType):
            if first_party(found.__name__):
                return None
        elif isinstance(found, FunctionType | type):
            if first_party(found.__module__):
                return None
        elif type(found) not in _FIXED:
            return None
        parts += (type(found), found)
    return parts


@functools.cache
def _globals_in(code: CodeType) -> frozenset[str]:
    """Names of globals that code and the functions inside it look up."""
    inner = (_globals_in(const) for const in code.co_consts if isinstance(const, CodeType))
    own = (step.argval for step in dis.get_instructions(code) if step.opname in _LOOK_UP)
    return frozenset(own).union(*inner)


_LOOK_UP = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})


@functools.cache
def _names_in(code: CodeType) -> frozenset[str]:
    """Names of all that code and the functions inside it may look up."""
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(code.co_names).union(*inner)


def pickle_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], along: CodeAlong | None = None
) -> bytes:
    """`(args, kwargs)`, by plain pickle where that says it all: it is ten times faster."""
    buffer = io.BytesIO()
    try:
        _Plain(buffer, along).dump((args, kwargs))
    except Exception:  # whatever it was, the slower road either manages it or explains it
        return _pickled((args, kwargs), "The arguments", along)
    return buffer.getvalue()


class _Plain(pickle.Pickler):
    """Stops at the first thing that a worker could not find by name."""

    def __init__(self, buffer: io.BytesIO, along: CodeAlong | None) -> None:
        super().__init__(buffer, 5)
        self._along = along

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        if cls is FunctionType or cls is ModuleType:
            raise pickle.PicklingError
        if cls is _Cached and not _is_found_by_name(obj, self._along):
            raise pickle.PicklingError
        name = obj.__module__ if isinstance(obj, type) else cls.__module__
        if first_party(name) and not (self._along and self._along.brings(name)):
            raise pickle.PicklingError
        return NotImplemented


class _Closed(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, except that own modules may refer to each other in circles and may hold things
    that no process can give to another (locks, open files): those stay behind. What goes along as
    files is named, and `along` is told of it."""

    def __init__(self, buffer: io.BytesIO, along: CodeAlong | None) -> None:
        super().__init__(buffer, protocol=5)
        self._along = along

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            if obj.__name__ == REWRITING:
                return plain_asserts.found, ()
            named = self._along is not None and self._along.brings(obj.__name__)
            if first_party(obj.__name__) and not named:
                contents = {
                    name: value
                    for name, value in vars(obj).items()
                    if name not in _MACHINERY and not isinstance(value, _PROCESS_BOUND)
                }
                return ModuleType, (obj.__name__, obj.__doc__), contents
        elif isinstance(obj, _Cached):
            if _is_found_by_name(obj, self._along):
                return NotImplemented
            again = functools.lru_cache(**obj.cache_parameters())
            return operator.call, (again, obj.__wrapped__)
        elif self._along is not None and isinstance(obj, FunctionType | type):
            named = _bring(obj, self._along)
            if isinstance(obj, FunctionType) and not named:
                self._along.meet(_imports(obj))
        return super().reducer_override(obj)


_MACHINERY = frozenset({"__builtins__", "__loader__", "__spec__", "__cached__", "__annotations__"})
_PROCESS_BOUND = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.Thread,
    threading.local,
    io.IOBase,
    GeneratorType,
)


def _pickled(value: Any, what: str, along: CodeAlong | None) -> bytes:
    buffer = io.BytesIO()
    try:
        with _own_modules_by_value(along):
            _Closed(buffer, along).dump(value)
    except Exception as error:
        raise InvalidJob(
            f"{what} cannot be sent: {error}. Make such objects inside the function, or send the "
            "code as a script or folder."
        ) from None
    return buffer.getvalue()


@contextlib.contextmanager
def _own_modules_by_value(along: CodeAlong | None) -> Iterator[None]:
    """cloudpickle's registry is global, so it is changed for one dump and put back. Those that go
    along as files stay out of it, but for their modules that pytest has rewritten."""
    with _lock:
        known = cloudpickle.list_registry_pickle_by_value()
        roots = {name.partition(".")[0] for name in list(sys.modules)}
        own = [root for root in roots - known if root != "__main__" and first_party(root)]
        named = {root for root in own if along is not None and along.could_bring(root)}
        wanted = [root for root in own if root not in named]
        if named and REWRITING in sys.modules:
            wanted += [
                name
                for name, module in list(sys.modules.items())
                if name.partition(".")[0] in named and is_rewritten(module) and name not in known
            ]
        added = [
            module
            for name in wanted
            if isinstance(module := sys.modules.get(name), ModuleType) and module.__name__ == name
        ]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


# --- scripts and folders -----------------------------------------------------------------------


def pack(target: str | Path, entry: str | None = None) -> tuple[bytes, str]:
    """A script or a folder as a zip that is the same for the same files, and what to run in it."""
    path = Path(target)
    if path.is_file():
        if entry is not None:
            raise InvalidJob(f"{path} is a file, so it is the entry itself; leave `entry` out.")
        if path.suffix != ".py":
            raise InvalidJob(
                f"{path} cannot be run: only Python scripts (.py) or folders with main.py can. "
                "A script may start other programs."
            )
        return write_zip([(path.name, path)], path.name), path.name
    if not path.is_dir():
        raise InvalidJob(f"There is no script or folder {str(path)!r}.")
    files = sorted(_files(path))
    entry = entry or "main.py"
    _check_entry(path, entry, {name for name, _ in files})
    return write_zip(files, path.resolve().name), entry


def check_inputs(package: bytes, names: Iterable[str]) -> None:
    """InvalidJob where an input would lie where a file of the package lies."""
    wanted = list(names)
    if not wanted:
        return
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        packed = archive.namelist()
    for name in wanted:
        for other in packed:
            if name == other or name.startswith(f"{other}/") or other.startswith(f"{name}/"):
                raise InvalidJob(
                    f"The input {name!r} and the file {other!r} of the package are in each other's "
                    "way. Give the input another name."
                )


def _check_entry(folder: Path, entry: str, names: set[str]) -> None:
    module, colon, function = entry.partition(":")
    if not colon:
        if entry not in names:
            raise InvalidJob(
                f"The folder {folder} has no {entry}. Name what to run with `entry`: a file in the "
                "folder, or package.module:function."
            )
        return
    place = module.replace(".", "/")
    if not function.isidentifier() or not {f"{place}.py", f"{place}/__init__.py"} & names:
        raise InvalidJob(
            f"The entry {entry!r} names no function of the folder {folder}; write it as "
            "package.module:function."
        )


def is_environment(folder: Path) -> bool:
    """Whether it is a virtual environment, whatever it is called."""
    return (folder / "pyvenv.cfg").is_file()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below, through links too, as its name in the zip and its path."""

    def walk(place: Path, prefix: str, above: frozenset[Path]) -> Iterator[tuple[str, Path]]:
        real = place.resolve()
        if real in above:
            return  # a link back to a folder that we are inside of
        for child in place.iterdir():
            if child.name in IGNORED or child.name.endswith(".pyc"):
                continue
            if child.is_dir():
                if is_environment(child):
                    continue
                yield from walk(child, f"{prefix}{child.name}/", above | {real})
            elif child.is_file():
                yield f"{prefix}{child.name}", child

    return walk(folder, "", frozenset())


def write_zip(files: list[tuple[str, Path]], what: str) -> bytes:
    buffer = io.BytesIO()
    try:
        total = sum(path.stat().st_size for _, path in files)
        if total > PACKAGE_LIMIT:
            raise TooLarge(
                f"The package is larger than {PACKAGE_LIMIT / 1e9:g} GB. Leave data out of the "
                "folder and let the job fetch it."
            )
        with (
            Progress(f"packing {what}", total) as progress,
            zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
        ):
            for name, path in files:
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                executable = bool(path.stat().st_mode & 0o100)
                info.external_attr = (0o100755 if executable else 0o100644) << 16
                data = path.read_bytes()
                archive.writestr(info, data)
                progress.advance(len(data))
    except OSError as error:
        raise InvalidJob(f"{error.filename} cannot be read: {error.strerror}.") from None
    except UnicodeEncodeError as error:
        raise InvalidJob(
            f"The name {error.object!r} is no text (UTF-8), so it cannot be sent. Rename the file."
        ) from None
    return buffer.getvalue()
