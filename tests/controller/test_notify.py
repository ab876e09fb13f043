"""Webhooks: what they are told, how it is signed, and that they hear of it whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from corral.controller.journal.record import Change
from corral.controller.webhooks import notify
from corral.controller.webhooks.notify import Timing
from corral.core.errors import InvalidJob, InvalidSettings
from corral.core.events import AttemptStarted, WorkerLost
from corral.core.job import Failure, JobId, State
from corral.core.webhook import address_of, check_webhook
from corral.engines.engine import Attempt
from corral.settings import Webhook
from tests.controller.receiver import Received, Receiver
from tests.controller.shell import Shell, shell, worker
from tests.eventually import eventually_async

FAST = Timing(timeout_s=5.0, backoff_s=0.01, backoff_max_s=0.02, settle_s=0.05)
KEY = "a-key-to-sign-with"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


async def until(receiver: Receiver, count: int, event: str = "") -> list[Received]:
    return await asyncio.to_thread(receiver.until, count, event)


def long_if_it_fails(attempt: Attempt) -> float:
    return 600.0 if b'"name":"fails"' in bytes(attempt.document) else 0.0


def notified(
    home: Path, *webhooks: Webhook, timing: Timing = FAST
) -> AbstractAsyncContextManager[Shell]:
    workers = [worker(cpus=1000.0)]
    return shell(home, workers, long_if_it_fails, webhooks=webhooks, timing=timing)


def told(said: Sequence[Mapping[str, Any]]) -> list[str]:
    return [line["event"] for line in said]


async def failed(made: Shell, **fields: object) -> JobId:
    job = await made.submit(name="fails", **fields)
    await made.until(job, AttemptStarted)
    made.engine.fail(job, 1, Failure(code="bad_package", message="It has no main.py."))
    await made.until_ended(job)
    return job


async def test_a_failed_job_is_told_and_signed(tmp_path: Path, receiver: Receiver) -> None:
    webhook = Webhook(url=f"{receiver.url}hook?x=1", on=("job_failed",), secret="HOOK_KEY")
    async with notified(tmp_path, webhook) as made:
        await made.vault.set("HOOK_KEY", KEY)
        await made.submit()
        job = await failed(made, user="ann", batch="nightly")
        (got,) = await until(receiver, 1)
        assert got.signed_by(KEY)
        assert not got.signed_by("another key")
        assert got.headers["Corral-Event"] == got.told["event"] == "job_failed"
        assert got.headers["Corral-Delivery"] == got.told["id"]
        assert got.headers["Content-Type"] == "application/json"
        told = got.told["job"]
        assert (told["job_id"], told["state"], told["user"]) == (job, "failed", "ann")
        assert told["failure"]["code"] == "bad_package"
        assert got.told["message"] == f"Job {job} (fails) failed (bad_package): It has no main.py."


async def test_labels_and_events_choose(tmp_path: Path, receiver: Receiver) -> None:
    webhooks = (
        Webhook(url=f"{receiver.url}a", on=("job_failed",), labels={"team": "a"}),
        Webhook(url=f"{receiver.url}b", on=("worker_lost",)),
    )
    async with notified(tmp_path, *webhooks) as made:
        await failed(made, labels={"team": "b"})
        job = await failed(made, labels={"team": "a", "more": "x"})
        (got,) = await until(receiver, 1)
        assert got.told["job"]["job_id"] == job
        assert len(receiver.received) == 1


async def test_an_answer_that_is_none_is_asked_for_again(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.statuses = [500, 404, 302, -1, 0, 200]
    quick = Timing(timeout_s=0.3, backoff_s=0.01, backoff_max_s=0.02, settle_s=0.05)
    webhook = Webhook(url=receiver.url, on=("job_failed",))
    async with notified(tmp_path, webhook, timing=quick) as made:
        first = await failed(made)
        second = await failed(made)
        got = await until(receiver, 7)
        assert [one.status for one in got] == [500, 404, 302, -1, 0, 200, 204]
        # One delivery id for all tries of the first, and the second waits for its turn.
        assert len({one.delivery for one in got[:6]}) == 1
        assert [one.told["job"]["job_id"] for one in got[5:]] == [first, second]


async def test_what_nobody_takes_is_given_up(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [500] * 1000
    timing = Timing(backoff_s=0.01, backoff_max_s=0.01, give_up_s=0.2)
    async with notified(tmp_path, Webhook(url=receiver.url), timing=timing) as made:
        with capture_logs() as said:
            await failed(made)
            await eventually_async(lambda: "notification_given_up" in told(said), "it is given up")
        assert "notification_delivered" not in told(said)
        assert len({one.delivery for one in receiver.received}) == 1


async def test_a_batch_is_done_once_it_stays_empty(tmp_path: Path, receiver: Receiver) -> None:
    timing = Timing(settle_s=0.5)
    async with notified(tmp_path, Webhook(url=receiver.url), timing=timing) as made:
        # Empty after each of them, as a map with a slow source is.
        for _ in range(5):
            job = await made.submit(batch="stream")
            await made.until_ended(job)
            assert "stream" not in made.store.world.batches
        await failed(made, batch="stream")
        (done,) = await until(receiver, 1, "batch_done")
        assert done.told["batch"] == {
            "name": "stream",
            "jobs": 6,
            "counts": {"succeeded": 5, "failed": 1},
        }
        assert done.told["message"] == "Batch stream is done: 1 failed, 5 succeeded."
        # More of it later is another emptying, told under another id.
        await made.until_ended(await made.submit(batch="stream"))
        again = (await until(receiver, 2, "batch_done"))[1]
        assert again.told["batch"]["jobs"] == 7
        assert again.delivery != done.delivery
        assert len(receiver.until(2, "batch_done")) == 2


async def test_a_batch_brings_its_own_webhook(tmp_path: Path, receiver: Receiver) -> None:
    async with notified(tmp_path) as made:
        await made.vault.set("HOOK_KEY", KEY)
        url = f"{receiver.url}mine"
        await failed(made, batch="mine", notify=url)
        await failed(made, batch="other")
        alone = await made.submit(notify=url)
        got = await until(receiver, 3)
        assert all(one.signed_by(KEY) for one in got)
        told = sorted((one.told["event"], one.told.get("batch", {}).get("name")) for one in got)
        assert told == [("batch_done", ""), ("batch_done", "mine"), ("job_failed", None)]
        single = next(one.told for one in got if one.told.get("batch", {}).get("name") == "")
        assert (single["job"]["job_id"], single["job"]["state"]) == (alone, State.SUCCEEDED)


async def test_a_lost_worker_is_told_and_one_that_leaves_is_not(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with notified(tmp_path, Webhook(url=receiver.url)) as made:
        held = await made.submit(name="fails")
        await made.until(held, AttemptStarted)
        made.notifier.worker(WorkerLost("stranger", "never seen here"), 0)
        made.engine.lose("w1")
        (got,) = await until(receiver, 1)
        assert got.told["worker"] == {
            "id": "w1",
            "name": "w1",
            "reason": "power cut",
            "attempts": 1,
        }
        made.engine.restore("w1")
        await made.until(held, AttemptStarted)
        made.notifier.worker(WorkerLost("w1", "goodbye", expected=True), 0)
        assert len(receiver.received) == 1


def _nowhere() -> str:
    """Accepts connections in its backlog and never answers."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(100)
    _open.append(listening)
    return f"http://127.0.0.1:{listening.getsockname()[1]}/dead"


_open: list[socket.socket] = []


@pytest.fixture
async def dead() -> AsyncIterator[str]:
    yield _nowhere()
    while _open:
        _open.pop().close()


async def test_a_dead_webhook_holds_up_nobody(
    tmp_path: Path, receiver: Receiver, dead: str
) -> None:
    webhooks = (Webhook(url=dead), Webhook(url=receiver.url))
    timing = Timing(timeout_s=60.0, settle_s=0.05)
    async with notified(tmp_path, *webhooks, timing=timing) as made:
        with capture_logs() as said:
            jobs = [await failed(made) for _ in range(20)]
            got = await until(receiver, 20)
            assert [one.told["job"]["job_id"] for one in got] == jobs
            await eventually_async(
                lambda: told(said).count("notification_delivered") == 20, "all are delivered"
            )
    # The dead one is told where it stopped, the other one nothing again.
    cursors = json.loads((tmp_path / "notify.json").read_text())
    assert list(cursors["webhooks"]) == [dead]
    assert cursors["webhooks"][dead] < cursors["seq"]


async def test_after_a_restart_the_rest_is_told(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [204, 503, 503, 503] + [503] * 10_000
    slow = Timing(backoff_s=30.0, backoff_max_s=30.0, settle_s=30.0)
    webhook = Webhook(url=receiver.url)
    async with notified(tmp_path, webhook, timing=slow) as made:
        await made.vault.set("HOOK_KEY", KEY)
        first = await failed(made, batch="b")
        await until(receiver, 1)
        second = await failed(made, batch="b")
        await until(receiver, 2)
        third = await failed(made, batch="b", notify=f"{receiver.url}own")
        (_, refused, *_) = await until(receiver, 3)
    receiver.statuses = []
    async with notified(tmp_path, webhook) as made:
        got = (await until(receiver, 8))[3:]
        told = [(one.told["event"], one.told.get("job", {}).get("job_id")) for one in got]
        # `first` was told before; the batch was empty, but not for long enough.
        assert sorted(told, key=str) == sorted(
            [
                ("job_failed", second),
                ("job_failed", third),
                ("job_failed", third),
                ("batch_done", None),
                ("batch_done", None),
            ],
            key=str,
        )
        assert first not in str(told)
        assert refused.delivery in {one.delivery for one in got}
    async with notified(tmp_path, webhook) as made:
        await failed(made)
        assert len(await until(receiver, 9)) == 9


async def test_what_is_known_at_the_stop_is_what_stays_written(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an older word was on its way to the disk when the controller stopped."""
    begun, newer = threading.Event(), threading.Event()
    replace, slow = os.replace, iter([True])

    def slowly(source: str, target: str) -> None:
        if Path(target).name != "notify.json":
            replace(source, target)
        elif next(slow, False):
            begun.set()
            newer.wait(1.0)
            replace(source, target)
        else:
            replace(source, target)
            newer.set()

    async with notified(tmp_path, Webhook(url=receiver.url)) as made:
        monkeypatch.setattr(os, "replace", slowly)
        await failed(made)
        await until(receiver, 1)
        await asyncio.to_thread(begun.wait)
        last = await failed(made)
        await until(receiver, 2)
        seq = made.store.journal.last_seq()
    assert json.loads((tmp_path / "notify.json").read_bytes())["seq"] == seq, last


async def test_a_webhook_named_later_hears_nothing_of_earlier(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with notified(tmp_path) as made:
        await failed(made)
    async with notified(tmp_path, Webhook(url=receiver.url)) as made:
        job = await failed(made)
        (got,) = await until(receiver, 1)
        assert got.told["job"]["job_id"] == job


async def test_more_than_fits_into_memory_is_found_in_the_journal(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "IN_MEMORY", 2)
    receiver.statuses = [503] * 5
    webhook = Webhook(url=receiver.url)
    timing = Timing(backoff_s=0.2, backoff_max_s=0.2, settle_s=0.05)
    async with notified(tmp_path, webhook, timing=timing) as made:
        jobs = [await failed(made, batch=f"b{n}") for n in range(6)]
        got = await until(receiver, 5 + 12)
        told = [one.told for one in got if one.status == 204]
        assert [one["job"]["job_id"] for one in told if one["event"] == "job_failed"] == jobs
        names = sorted(one["batch"]["name"] for one in told if one["event"] == "batch_done")
        assert names == [f"b{n}" for n in range(6)]


async def test_a_missing_key_is_waited_for(tmp_path: Path, receiver: Receiver) -> None:
    webhook = Webhook(url=receiver.url, secret="LATER", on=("job_failed",))
    async with notified(tmp_path, webhook) as made:
        with capture_logs() as said:
            await failed(made)
            await eventually_async(lambda: "notification_failed" in told(said), "a try has failed")
        assert not receiver.received
        await made.vault.set("LATER", KEY)
        (got,) = await until(receiver, 1)
        assert got.signed_by(KEY)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "http://", "nothing", "http://me:pass@host/", "http://host/a b", "http://[::1",
     "https://host\r\nX: y/", "http://host:99999/", "http://" + "x" * 3000],
)  # fmt: skip
def test_urls_that_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="notify"):
        check_webhook(url)


async def test_a_wrong_url_in_the_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings):
        async with notified(tmp_path, Webhook(url="ftp://host/")):
            pass


def test_addresses() -> None:
    assert address_of("http://host") == (False, "host", 80, "/")
    assert address_of("https://h:8443/a%20b/ü?q=ö&r") == (
        True, "h", 8443, "/a%20b/%C3%BC?q=%C3%B6&r",
    )  # fmt: skip
    assert address_of("http://[::1]:81/").netloc == "[::1]:81"
    assert address_of("https://host/x").netloc == "host"


async def test_what_the_notifier_could_not_hear_it_finds_in_the_journal(
    tmp_path: Path, receiver: Receiver
) -> None:
    class Deaf(notify.Notifier):
        def _committed(self, changes: Sequence[Change]) -> None:
            raise MemoryError("a mistake of ours")

    async with notified(tmp_path) as made:
        webhook = Webhook(url=receiver.url, on=("job_failed", "batch_done"))
        path = tmp_path / "deaf.json"
        deaf = Deaf(made.store, made.vault, path, webhooks=[webhook], timing=FAST)
        running = asyncio.create_task(deaf.run())
        job = await failed(made, batch="nightly")
        got = await until(receiver, 2)
        assert {one.told["event"] for one in got} == {"job_failed", "batch_done"}
        assert job in {one.told.get("job", {}).get("job_id") for one in got}
        running.cancel()
        await deaf.close()
