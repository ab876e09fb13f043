"""Exceptions as bytes that make the same ones again where their classes are known."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def dumps(error: BaseException) -> bytes:
    """An exception is made again from its `args`, and an `__init__` of its own takes others, or
    makes another message of them: it ran once, and does not run again."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            cls = type(obj)
            if issubclass(cls, BaseException) and not issubclass(cls, BaseExceptionGroup):
                builtin = _builtin(cls)
                if cls is not builtin and _reduced_as(cls, builtin):
                    parts: Any = builtin.__reduce__(obj)
                    return remade, (cls, parts[1]), *parts[2:]
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(error)
    return buffer.getvalue()


def remade(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """As the interpreter makes one, without what the class itself would do."""
    builtin = _builtin(cls)
    error: BaseException = builtin.__new__(cls, *args)
    init: Callable[..., None] = builtin.__init__
    init(error, *args)
    return error


def _builtin(cls: type[BaseException]) -> type[BaseException]:
    """By the way that Python made it: a class may have several among its bases."""
    found: Any = cls
    while found.__module__ != "builtins":
        found = found.__base__
    return found  # type: ignore[no-any-return]


def _reduced_as(cls: type[BaseException], builtin: type[BaseException]) -> bool:
    """Whether the class has no way of its own to be pickled, which then is best."""
    own = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    return all(getattr(cls, name, None) is getattr(builtin, name, None) for name in own)
