"""Models by name: what jobs ask for, and what lies in a worker's folders of models."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth", ".gguf", ".onnx", ".bin")
MARKS = ("model_index.json", "config.json")
"""A folder with one of these is one model."""

_HASH = re.compile(r"\s*\[[0-9a-fA-F]+\]$")
_HUB = re.compile(r"models--(?P<name>[^/]+)/snapshots/[^/]+")
"""How the Hugging Face hub keeps them."""


class FoundModel(NamedTuple):
    name: str
    files: tuple[str, ...]
    root: str
    """The folder of a model that has several files; empty for one that is a file."""


def model_name(text: str) -> str:
    """The name alone. Programs write it in several ways, and all of them mean one model.

    >>> model_name("sdxl_1.0.safetensors [31e35c80fc]"), model_name("org/llama-3.1")
    ('sdxl_1.0', 'org/llama-3.1')
    """
    name = _HASH.sub("", text.strip())
    for suffix in SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def models_in(root: str) -> Iterator[FoundModel]:
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
                # Names that cannot be written down are nobody's models.
                named = (entry for entry in entries if entry.name.isprintable())
                inside = sorted(named, key=lambda entry: entry.name)
        except OSError:
            continue
        files = [entry for entry in inside if entry.is_file()]
        if folder != root and any(entry.name in MARKS for entry in files):
            paths = tuple(sorted(_files_below(folder)))
            yield FoundModel(_folder_name(os.path.relpath(folder, root)), paths, folder)
            continue
        for entry in files:
            if entry.name.lower().endswith(SUFFIXES):
                yield FoundModel(model_name(entry.name), (entry.path,), "")
        below = [entry.path for entry in inside if entry.is_dir() and entry.name[0] != "."]
        folders.extend(reversed(below))


def folder_digest(root: str, files: Iterable[tuple[str, str]]) -> str:
    """Of a model that is a folder: of the list of its files and their digests."""
    lines = sorted(f"{os.path.relpath(file, root)} {sha256}\n" for file, sha256 in files)
    return hashlib.sha256("".join(lines).replace(os.sep, "/").encode()).hexdigest()


def _files_below(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        for name in filter(str.isprintable, names):
            yield os.path.join(path, name)


def _folder_name(way: str) -> str:
    way = way.replace(os.sep, "/")
    hub = _HUB.fullmatch(way)
    return hub["name"].replace("--", "/") if hub else way
