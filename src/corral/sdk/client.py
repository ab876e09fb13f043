"""The Client of ordinary programs: AsyncClient's calls, run on one event loop in the background, or
directly where they are short. Importing it needs only the standard library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from corral.sdk.bridge import shared_bridge
from corral.sdk.functions import P, RemoteFunction, decorated

if TYPE_CHECKING:
    from corral.contract import views
    from corral.sdk.administration import Administration, Secrets
    from corral.sdk.aio import AsyncClient
    from corral.sdk.files.assets import Asset
    from corral.sdk.handles import AsyncHandle, Handle, ProgressSink, Sink
    from corral.sdk.images.batches import BatchHandle, Plan, Presets
    from corral.sdk.images.learning import Learning
    from corral.sdk.submit.submission import Filters, Options
    from corral.sdk.transport.direct import Direct

T = TypeVar("T")


class Client:
    """A controller's client.

    >>> client = Client()                            # doctest: +SKIP
    >>> client.run(pow, (2, 10))                     # doctest: +SKIP
    1024
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self._where = (address, token, home)
        self._made: AsyncClient | None = None
        self._made_direct: Direct | None = None

    @property
    def _client(self) -> AsyncClient:
        if self._made is None:
            from corral.sdk.aio import AsyncClient

            address, token, home = self._where
            self._made = AsyncClient(address, token, home=home)
        return self._made

    @property
    def _direct(self) -> Direct:
        if self._made_direct is None:
            from corral.sdk.transport.direct import Direct, NotDirect
            from corral.settings import fast_paths

            made = Direct if "direct_call" in fast_paths() else NotDirect
            self._made_direct = made(self._client._connection)
        return self._made_direct

    @property
    def secrets(self) -> Secrets:
        """Set, list and remove the secrets that jobs may name."""
        from corral.sdk.administration import Secrets

        return Secrets(self._client.secrets)

    @property
    def presets(self) -> Presets:
        """Save, list, get and remove the bases that plans may name."""
        from corral.sdk.images.batches import Presets

        return Presets(self._client.presets)

    def __reduce__(self) -> tuple[Any, ...]:
        # A module's client may be swept along with its functions; its token must not be.
        return Client, ()

    @property
    def address(self) -> str:
        return self._client.address

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the next call would make a new one."""
        if self._made_direct is not None:
            self._made_direct.close()
        if self._made is not None:
            shared_bridge().call(self._made.close())

    def run(
        self,
        fn: Callable[..., T],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        output: Sink = "print",
        progress: ProgressSink = None,
        **options: Unpack[Options],
    ) -> T:
        """Runs a function on a worker: its output appears here, its value is returned and its
        exception raised. Ctrl-C cancels the job."""
        from corral.core.job import QueueClass
        from corral.sdk.submit.outgoing import function_job
        from corral.sdk.transport.direct import NOTHING

        bridge, client = shared_bridge(), self._client
        job = function_job(fn, args, kwargs, options, QueueClass.INTERACTIVE)
        try:
            value, reply = self._direct.run(job, output, progress)
        except KeyboardInterrupt:
            bridge.call(client.abandon(job))
            raise
        if value is NOTHING:
            value = bridge.call(client.follow(job, output, progress, reply))
        found: T = value
        return found

    def submit(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Handle:
        """Hands a function over and returns once it is durably accepted."""
        from corral.core.job import QueueClass
        from corral.sdk.submit.outgoing import function_job

        bridge, client = shared_bridge(), self._client
        job = function_job(fn, args, kwargs, options, QueueClass.BATCH)
        reply = self._direct.submit(job)
        if reply is None:
            return _handle(bridge.call(client.hand_over(job)))
        return _handle(client.handle_of(reply))

    def submit_map(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        *more: Iterable[Any],
        **options: Unpack[Options],
    ) -> list[Handle]:
        """The function over each item, as `map` does, but without waiting for results: returns
        once all of them are durably accepted, as one batch."""
        accepted = self._client.submit_map(fn, iterable, *more, **options)
        return [_handle(one) for one in shared_bridge().call(accepted)]

    def map(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Any],
        *more: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        outstanding: int = 10_000,
        **options: Unpack[Options],
    ) -> Iterator[T]:
        """The function over each item, lazily; over one of each where there are several iterables.
        A failed item raises in its turn and the rest is cancelled; `return_exceptions` yields the
        errors instead."""
        from corral.sdk.mapping import MapCall, WantedItems, take

        steps = MapCall(
            self._client._connection,
            fn,
            options,
            spread=bool(more),
            ordered=ordered,
            return_exceptions=return_exceptions,
            outstanding=outstanding,
        ).steps()

        async def step(answer: list[Any] | None) -> WantedItems | list[Any] | None:
            try:
                return await steps.asend(answer)
            except StopAsyncIteration:
                return None

        def drive() -> Iterator[T]:
            items = zip(iterable, *more) if more else iter(iterable)  # noqa: B905
            answer: list[Any] | None = None
            try:
                while (found := shared_bridge().call(step(answer))) is not None:
                    answer = None
                    if isinstance(found, WantedItems):
                        answer = take(items, found.most)
                    else:
                        yield from found
            finally:
                shared_bridge().close(steps)

        return drive()

    @overload
    def function(self, fn: Callable[P, T], /) -> RemoteFunction[P, T]: ...
    @overload
    def function(
        self, /, **options: Unpack[Options]
    ) -> Callable[[Callable[P, T]], RemoteFunction[P, T]]: ...
    def function(self, fn: Any = None, /, **options: Any) -> Any:
        """Decorator: the function's `.remote()`, `.submit()` and `.map()` use this client."""
        return decorated(lambda: self, fn, options)

    def run_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        output: Sink = "print",
        progress: ProgressSink = None,
        **options: Unpack[Options],
    ) -> None:
        """Runs a script or a folder with an entry; an exit code other than 0 is a JobFailed."""
        shared_bridge().call(
            self._client.run_script(
                path, argv, entry=entry, output=output, progress=progress, **options
            )
        )

    def submit_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        **options: Unpack[Options],
    ) -> Handle:
        """Hands a script or folder over and returns once it is durably accepted."""
        return _handle(
            shared_bridge().call(self._client.submit_script(path, argv, entry=entry, **options))
        )

    def put(
        self, path: str | os.PathLike[str], *, progress: Callable[[int], object] | None = None
    ) -> Asset:
        """Hands a file over for jobs to have as an input; what the controller has is not sent
        again. `progress` is told how many bytes more are there; without it a large file is shown
        on stderr."""
        return shared_bridge().call(self._client.put(path, progress=progress))

    def batch(self, plan: Plan, *, key: str | None = None) -> BatchHandle:
        """Image jobs from a plan, a value or a file: built by the controller and durably accepted
        as one batch when this returns. The same key again is the same batch."""
        from corral.sdk.images.batches import BatchHandle

        return BatchHandle(shared_bridge().call(self._client.batch(plan, key=key)))

    def preview(self, plan: Plan) -> list[dict[str, Any]]:
        """The records that a plan makes; nothing is submitted."""
        return shared_bridge().call(self._client.preview(plan))

    def open_batch(self, batch: str) -> BatchHandle:
        """A handle for a batch submitted earlier, perhaps by another program. Asks nothing yet."""
        from corral.sdk.images.batches import BatchHandle

        return BatchHandle(self._client.open_batch(batch))

    def batches(self, limit: int = 100) -> list[views.BatchView]:
        """Batches, the one with the newest job first."""
        return shared_bridge().call(self._client.batches(limit))

    def job(self, job_id: str) -> Handle:
        """A handle for a job submitted earlier, perhaps by another program. Asks nothing yet."""
        return _handle(self._client.job(job_id))

    def jobs(
        self,
        *,
        states: Iterable[str] = (),
        limit: int = 100,
        before: str = "",
        **filters: Unpack[Filters],
    ) -> list[views.JobView]:
        """Newest first; `before` is the last id of the page before."""
        return shared_bridge().call(
            self._client.jobs(states=states, limit=limit, before=before, **filters)
        )

    @property
    def admin(self) -> Administration:
        """The queue as a whole, and the tokens of clients."""
        from corral.sdk.administration import Administration

        return Administration(self._client.admin)

    @property
    def learning(self) -> Learning:
        """What was learned from image jobs, and how good they were."""
        from corral.sdk.images.learning import Learning

        return Learning(self._client.learning)

    def workers(self) -> list[views.WorkerView]:
        return shared_bridge().call(self._client.workers())

    def health(self) -> views.Health:
        return shared_bridge().call(self._client.health())

    def backup(
        self,
        write: Callable[[bytes], object],
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Everything the controller knows, as one tar file, handed to `write` piece by piece."""
        shared_bridge().call(self._client.backup(write, progress))


def _handle(asynchronous: AsyncHandle) -> Handle:
    from corral.sdk.handles import Handle

    return Handle(asynchronous)
