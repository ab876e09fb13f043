"""What to do next, for exceptions with a cause outside of the job: files, memory, modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from corral.runtime.failures import OURS, OUT_OF_MEMORY_TYPES, type_name

GIB = 1024**3
KINDS = (PermissionError, MemoryError, ImportError)
FOLDER = "a folder"
PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "grpc": "grpcio",
    "jwt": "pyjwt",
    "lightning_fabric": "lightning",
    "llama_cpp": "llama-cpp-python",
    "magic": "python-magic",
    "OpenSSL": "pyopenssl",
    "pkg_resources": "setuptools<81",
    "PIL": "pillow",
    "psycopg2": "psycopg2-binary",
    "pynvml": "nvidia-ml-py",
    "pytorch_lightning": "pytorch-lightning",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "umap": "umap-learn",
    "usb": "pyusb",
    "whisper": "openai-whisper",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""What an installer calls the package of a module, where it is another name."""


class Bounds(NamedTuple):
    """What was left to this process: by default everything."""

    memory_bytes: int = 0
    files: bool = False
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    sent: str = ""
    """Of a script: the one file that was sent, or `a folder`."""
    own_code: str = ""
    """Of a function: the folder with the modules that went along."""


def add(message: str, error: BaseException, bounds: Bounds) -> str:
    """The message of an exception, and what to do about it where it is of one of these kinds."""
    return joined(message, of(error, bounds))


def joined(message: str, hint: str) -> str:
    return f"{message.rstrip('.')}. {hint}" if message and hint else message or hint


def of(error: BaseException, bounds: Bounds) -> str:
    try:
        return _hint(error, bounds) if issubclass(type(error), KINDS) else ""
    except BaseException:  # It is user code's, and may raise at any look.
        return ""


def _hint(error: BaseException, bounds: Bounds) -> str:
    if isinstance(error, PermissionError):
        if bounds.files and isinstance(error.filename, str | bytes):
            return _about_path(os.fsdecode(error.filename), bounds)
    elif isinstance(error, MemoryError):
        if type_name(type(error)) not in OUT_OF_MEMORY_TYPES:  # Those speak of a GPU's memory.
            return _about_memory(bounds)
    elif isinstance(error, ImportError) and error.name:
        top = error.name.partition(".")[0]
        if top == "corral" or _is_raised_by_corral(error):
            return (
                "Jobs cannot submit jobs: inside one, corral is corral.job alone. Submit from your "
                "own program, and make its client outside of what a job imports."
            )
        if isinstance(error, ModuleNotFoundError) or error.msg.startswith("cannot import name"):
            return about_module(top, bounds.sent, bounds.own_code)
    return ""


def about_module(top: str, sent: str = "", own_code: str = "") -> str:
    """What would bring a module, or the version of it that has what is asked for."""
    if top in sys.modules:
        try:
            if own_code and _is_below(sys.modules[top], own_code):
                return (
                    f"Your {top} went along without it: look into .gitignore and .corralignore, "
                    "which leave files out."
                )
            return _other_version(top)
        except Exception:  # of a package that is not as packages are
            return ""
    # What belongs to another platform's Python no requirement would bring.
    return "" if top in sys.stdlib_module_names else _add_requirement(top, sent, own_code)


def _is_below(module: object, folder: str) -> bool:
    places = [str(getattr(module, "__file__", "")), *getattr(module, "__path__", ())]
    return any(place.startswith(folder) for place in places)


def _add_requirement(module: str, sent: str, own_code: str) -> str:
    if own_code:
        package = PACKAGES.get(module, module)
        return (
            f"Add {package} to requirements=[…], or name it in code=[…] where it is your own. If "
            "a module of yours imports it and the function does without it, import it inside of "
            "what needs it; code=() sends the function without its module."
        )
    if not sent:
        own = "name it, or its folder, in code=[…]"
    elif sent == FOLDER:
        own = "put it into the folder that is sent, where the entry finds it"
    else:
        own = f"send its folder, since only {sent} was sent: corral run FOLDER --entry {sent}"
    package = PACKAGES.get(module, module)
    added = f"requirements=[…] (--with {package})"
    return f"Add {package} to {added}, or, for a module of your own, {own}."


def _other_version(top: str) -> str:
    from importlib import metadata

    for package in (PACKAGES.get(top, top), *metadata.packages_distributions().get(top, ())):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return (
            f"This worker's environment has {package} {version}: name the version that you have in "
            f"requirements=[…], as {package}==… (--with {package}==…)."
        )
    return ""


def _is_raised_by_corral(error: BaseException) -> bool:
    """By its client, that is, which loads what no job has."""
    place, last = error.__traceback__, ""
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        last = last if file.startswith("<frozen ") else file
        place = place.tb_next
    return last.startswith(OURS) and not last.startswith(os.path.join(OURS, "runtime"))


def _about_memory(bounds: Bounds) -> str:
    if bounds.memory_bytes:
        limit = round(bounds.memory_bytes / GIB, 3)
        return f"The job ran out of memory: it had memory_gb={limit:g}. Submit it with more."
    return "The job ran out of memory: it had no limit of its own, the machine had no more."


def _about_path(path: str, bounds: Bounds) -> str:
    """Empty where the sandbox allows the path: then it is the machine's own permissions."""
    real = os.path.realpath(path)
    if _inside(real, bounds.writes):
        return ""
    if _inside(os.path.abspath(path), bounds.writes) and _opens(real):
        return "Inputs are for reading, and others may have the same file: copy it and change that."
    if not _inside(real, bounds.reads):
        return (
            "Jobs see only their own folder and the system's: ask for the path with read=[…] "
            "(--read), put it into worker.read_paths (or worker.write_paths) of the worker's "
            "corral.yaml, or send the file along."
        )
    if not (os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)):
        return ""
    return (
        "Jobs may read there but not write: use the job's own folder, or put the path into "
        "worker.write_paths of the worker's corral.yaml."
    )


def _opens(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(
        path == folder or path.startswith(os.path.join(folder, ""))
        for folder in map(os.path.realpath, folders)
    )
