"""Python loads a module of this name before anything of the user's: a script is then told as much
as a function is. What would have been loaded instead still is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def _tell(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, place)
    if os.getpid() != _script:
        return  # a child that the script forked
    try:
        from corral.runtime.scripts import errors

        errors.tell(_asked, error)
    except BaseException:  # noqa: S110 (the traceback is printed, and the exit code is true)
        pass


def _load_the_other() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = other = module_from_spec(spec)
        spec.loader.exec_module(other)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
# The first Python takes it, which is the script's; whatever the script starts finds none.
_asked = os.environ.pop("CORRAL_SCRIPT", "")
_script = os.getpid()
_seen = os.environ.get("CORRAL_SEEN_PATHS", "")
_hurry = os.environ.pop("CORRAL_HURRY", "")
if _asked:
    sys.excepthook = _tell
if sys.platform != "win32" and _hurry:
    from corral.runtime.channels.in_order import order_streams

    order_streams(int(_hurry))
if _seen:
    from corral.runtime.sandbox.unseen import UnseenFolders

    _folders = UnseenFolders(_seen.split("\n"))
    _folders.begin()
    _folders.watch()
_load_the_other()
