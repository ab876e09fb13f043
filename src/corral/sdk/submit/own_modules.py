"""Whose code a module is: the caller's own, or installed, or of Python; and where it lies."""

from __future__ import annotations

import dis
import importlib.util
import json
import sys
import sysconfig
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

REWRITING = "_pytest.assertion.rewrite"
"""Of which modules are loaded that pytest rewrote the asserts of."""

_roots: dict[str, bool] = {"": False, "builtins": False, "corral": False, "cloudpickle": False}


LOOKED_UP_S = 1.0
"""For so long it holds where a module that is not loaded would come from."""

_by_name: dict[str, str] = {}
_unloaded: dict[str, tuple[bool, float]] = {}


class OwnRoot(NamedTuple):
    """A package or a module of the caller's own, at the top."""

    name: str
    places: tuple[Path, ...]
    """Its folders, of which a namespace has several; or its one file."""


def first_party(module_name: str | None) -> bool:
    """Whether a module is the user's own: neither installed, nor standard library, nor Corral."""
    root = (module_name or "").partition(".")[0]
    known = _roots.get(root)
    if known is None:
        module = sys.modules.get(root)
        if module is None:
            return True  # made up at run time: no worker can import it
        known = root in ("__main__", "__mp_main__") or _are_own(_places(module))
        _roots[root] = known
    return known


def own_root(name: str) -> OwnRoot | None:
    """The caller's own module or package at the top of this name, where it has files. One that is
    not loaded is looked for, and not imported."""
    name = name.partition(".")[0]
    if name in sys.stdlib_module_names or name in ("__main__", "__mp_main__"):
        return None
    module = sys.modules.get(name)
    if module is not None:
        places = _places(module) if first_party(name) else ()
    elif _roots.get(name) is False:
        return None
    else:
        places = _places_unloaded(name)
    places = tuple(place for place in places if place.exists())
    return OwnRoot(name, places) if places else None


def by_name(module_name: str | None) -> str:
    """The top of an own module that a worker can import, given its files; nothing for what is only
    in this process: `__main__`, and tests as pytest has rewritten them."""
    name = module_name or ""
    found = _by_name.get(name)
    if found is None:
        module = sys.modules.get(name)
        if module is None or not first_party(name) or is_rewritten(module):
            return ""
        root = own_root(name)
        found = _by_name[name] = root.name if root else ""
    return found


def is_own_top(name: str) -> bool:
    """Whether a module of this name at the top is the caller's own and has files, loaded or not."""
    module = sys.modules.get(name)
    if module is not None:
        return bool(by_name(name)) or (is_rewritten(module) and own_root(name) is not None)
    known = _unloaded.get(name)
    if known is None or known[1] < time.monotonic():
        known = _unloaded[name] = (own_root(name) is not None, time.monotonic() + LOOKED_UP_S)
    return known[0]


def is_rewritten(module: object) -> bool:
    return type(getattr(module, "__loader__", None)).__module__ == REWRITING


@cache
def imports_of(code: CodeType, package: str) -> frozenset[str]:
    """The tops of what a function, and those inside it, import when they run."""
    found = (package.partition(".")[0] if level else name for level, name in _imports_in(code))
    return frozenset(name.partition(".")[0] for name in found if name)


@cache
def _imports_in(code: CodeType) -> frozenset[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    before: list[Any] = [None, None]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            found.add((int(before[-2] or 0), step.argval))
        before.append(step.argval)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= _imports_in(const)
    return frozenset(found)


def _places(module: ModuleType) -> tuple[Path, ...]:
    # Without any of these it is built in or frozen; a namespace package has folders alone.
    folders = tuple(Path(folder) for folder in getattr(module, "__path__", ()))
    if file := getattr(module, "__file__", None):
        return (folders or (Path(file),)) if str(file).endswith((".py", ".pyc")) else ()
    return folders


def _places_unloaded(name: str) -> tuple[Path, ...]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ()
    if spec is None:
        return ()
    places = tuple(map(Path, spec.submodule_search_locations or ()))
    if spec.loader is None or spec.origin is None:
        # Any folder is a package by its name alone: one with modules is meant, and not one that a
        # library of this name once wrote its logs to.
        places = tuple(place for place in places if _has_modules(place))
    if not places and spec.origin is not None and spec.origin.endswith(".py"):
        places = (Path(spec.origin),)
    return places if _are_own(places) else ()


def _has_modules(folder: Path) -> bool:
    return any(folder.glob("*.py")) or any(folder.glob("*/__init__.py"))


def _are_own(places: tuple[Path, ...]) -> bool:
    return bool(places) and not any(_is_installed(place) for place in places)


def _is_installed(place: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(place.parts):
        return place.name not in _from_folders(place.parent)
    if any(place.is_relative_to(folder) for folder in _installed_folders()):
        return True
    # `pip install --target` and what PYTHONPATH adds: an installer's record lies beside it.
    # Beside it, because a project installed as editable has its record in site-packages.
    return any(
        place.name in _recorded(record) for record in place.parent.glob("*.dist-info/RECORD")
    )


@cache
def _from_folders(site: Path) -> frozenset[str]:
    """What `pip install FOLDER` put there: no registry has it."""
    found: set[str] = set()
    for told in site.glob("*.dist-info/direct_url.json"):
        try:
            if "dir_info" in json.loads(told.read_bytes()):
                found.update(_recorded(told.with_name("RECORD")))
        except (OSError, ValueError):
            continue
    return frozenset(found)


def _recorded(record: Path) -> Iterator[str]:
    """The names at the top of what an installer wrote down."""
    try:
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return iter(())
    return (line.partition(",")[0].partition("/")[0] for line in lines)


@cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(sorted(found | {str(Path(folder).resolve()) for folder in found}))
