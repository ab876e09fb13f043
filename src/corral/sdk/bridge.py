"""One event loop in the background, on which synchronous programs run what is asynchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from corral.core.errors import CorralError, Unavailable

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Bridge:
    """One thread with one event loop for all clients of a process: grpc.aio works best with one."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._loop.set_exception_handler(_quiet)
        threading.Thread(target=self._loop.run_forever, name="corral-client", daemon=True).start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine. Ctrl-C reaches it as a cancellation, and then the caller."""
        call = _Call(coroutine)
        try:
            self._loop.call_soon_threadsafe(call.begin)
            return call.future.result()
        except CorralError as error:
            # Its way through the loop would tell nobody anything.
            raise error.with_traceback(None)  # noqa: B904 - its cause is the job's own exception
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(call.stop)
            call.over.wait(timeout=5)  # it may have something to put in order
            raise

    def each(self, lists: AsyncGenerator[list[T], None]) -> Generator[T, None, None]:
        """The elements of a generator of lists: one trip to the loop for each list."""
        try:
            while (found := self.call(_next(lists))) is not None:
                yield from found
        finally:
            self.close(lists)

    def close(self, generator: AsyncGenerator[Any, Any]) -> None:
        # A generator still suspended when the interpreter ends finds no loop to close it.
        if not sys.is_finalizing():
            self.call(generator.aclose())


def _new_loop() -> asyncio.AbstractEventLoop:
    """The faster one, where there is one: each call crosses from thread to thread and back."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Call(Generic[T]):
    """A coroutine on its way to the loop. Ctrl-C may strike anywhere, also between handing it over
    and waiting for it, so it exists before either and can be stopped from then on."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.over = threading.Event()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        if not self.over.is_set():
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._finish)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self.over.set()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.future.cancel()
        elif error := task.exception():
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())
        self.over.set()


async def _next(lists: AsyncGenerator[list[T], None]) -> list[T] | None:
    return await anext(lists, None)


def _quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Beside another event loop with grpc in the program, grpc's poller now and then wakes one loop
    # for the other's event and finds nothing to read: harmless.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


_made: tuple[int, Bridge] | None = None
_making = threading.Lock()


def shared_bridge() -> Bridge:
    global _made
    with _making:
        if _made is None:
            _made = (os.getpid(), Bridge())
        made_in, found = _made
    if made_in != os.getpid():
        # Its thread stayed with the parent, and gRPC does not survive a fork: this would hang.
        raise Unavailable(
            "This process was forked from one that had already used Corral. Start it by the spawn "
            "method (multiprocessing.get_context('spawn')), or use Corral only after the fork."
        )
    return found


class Bridged(Generic[A]):
    """What a synchronous program has of an asynchronous object."""

    def __init__(self, asynchronous: A) -> None:
        self._asynchronous = asynchronous


def bridged(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Bridged[A], P], T]:
    """The method of an asynchronous class as one of its Bridged class: called, it is waited for."""

    @functools.wraps(method)
    def call(self: Bridged[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return shared_bridge().call(method(self._asynchronous, *args, **kwargs))

    return call


async def one_by_one(found: AsyncIterator[T]) -> AsyncGenerator[list[T], None]:
    """For `each`, where what comes does not come in lists."""
    async for one in found:
        yield [one]
