"""Functions that know where to run: `@client.function(...)` and the free `@corral.remote(...)`.

Needs only the standard library: a job may unpickle a function whose neighbours were decorated.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from corral.sdk.client import Client
    from corral.sdk.submit.submission import Options

P = ParamSpec("P")
T = TypeVar("T")


class RemoteFunction(Generic[P, T]):
    """A function with a second way to be called. Called plainly, it runs right here."""

    def __init__(
        self, client: Callable[[], Any], function: Callable[P, T], options: Options
    ) -> None:
        self._client = client
        self._function = function
        self._options = options
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<RemoteFunction {getattr(self._function, '__qualname__', self._function)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> RemoteFunction[..., T]:
        """Decorated methods bind to their instance, which then travels with each call."""
        if instance is None:
            return self
        function: Any = self._function
        bound = functools.partial(function, instance)
        functools.update_wrapper(bound, self._function)
        return RemoteFunction(self._client, bound, self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return inside_a_job, (self._function,)

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs it on a worker with these arguments, shows its output and returns its value."""
        found: T = self._client().run(self._function, args, kwargs, **self._options)
        return found

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Hands it over with these arguments and returns the job's handle."""
        return self._client().submit(self._function, args, kwargs, **self._options)

    def map(
        self,
        iterable: Iterable[Any],
        *more: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        **options: Unpack[Options],
    ) -> Any:
        """Runs it once for each item (or one of each iterable) and yields the values as they
        come."""
        return self._client().map(
            self._function,
            iterable,
            *more,
            ordered=ordered,
            return_exceptions=return_exceptions,
            **{**self._options, **options},
        )

    def options(self, **options: Unpack[Options]) -> RemoteFunction[P, T]:
        """The same function with some options changed."""
        return RemoteFunction(self._client, self._function, {**self._options, **options})


def inside_a_job(function: Any) -> Any:
    """What goes into a job: the plain function; its `remote`, `submit` and `map` say why not."""
    for way in ("remote", "submit", "map"):
        with contextlib.suppress(AttributeError, TypeError):  # built-in functions take none
            named = getattr(function, "__name__", "function")
            setattr(function, way, functools.partial(_refuse, f"{named}.{way}"))
    return function


def absent_in_jobs(name: str) -> type:
    """Inside a job, which has no way to submit: a module that is imported there may name what it
    uses elsewhere."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            f"corral.{name} was used inside a job, and jobs cannot submit jobs yet. Use it in your "
            "own program."
        )

    return type(name, (), {"__init__": refuse})


def _refuse(what: str, *_: object, **__: object) -> NoReturn:
    raise RuntimeError(
        f"{what}() was called inside a job, and jobs cannot submit jobs yet. Call the function "
        "plainly, and it runs right there."
    )


def decorated(client: Callable[[], Any], function: Any, options: Any) -> Any:
    """What a decorator returns, bare or with options, which are checked right at the definition."""
    if options:
        with contextlib.suppress(ImportError):  # inside a job, which has no way to submit
            from corral.sdk.submit.submission import check_names

            check_names(options)
    if function is None:
        return lambda function: RemoteFunction(client, function, options)
    return RemoteFunction(client, function, options)


@functools.cache
def default_client() -> Client:
    from corral.sdk.client import Client

    return Client()


@overload
def remote(function: Callable[P, T], /) -> RemoteFunction[P, T]: ...
@overload
def remote(
    **options: Unpack[Options],
) -> Callable[[Callable[P, T]], RemoteFunction[P, T]]: ...
def remote(function: Any = None, /, **options: Any) -> Any:
    """Decorator, bare or with options, for the controller that `Client()` would find."""
    return decorated(default_client, function, options)
