"""Queue, loop and intake together: what becomes of jobs, whatever workers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from corral.controller.intake import Intake
from corral.controller.journal.database import Journal
from corral.controller.output.feed import AT_ONCE
from corral.controller.output.pages import Cursor
from corral.controller.store import Store
from corral.controller.why import explain
from corral.controller.world import World
from corral.core.errors import (
    Conflict,
    ExceedsAllWorkers,
    InvalidJob,
    JobNotFound,
    NoGpuWorkers,
    TooLarge,
)
from corral.core.events import (
    AttemptExited,
    AttemptOutput,
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    EngineReport,
    JobCancelled,
    JobFailed,
    JobRequeued,
    JobStopping,
    WorkerJoined,
)
from corral.core.frames import OutputFrame, ProgressFrame, decode_frame
from corral.core.job import (
    Blob,
    Failure,
    FunctionCall,
    Job,
    Needs,
    QueueClass,
    State,
    decode_document,
)
from corral.scheduler.settle import Policy
from tests.controller.shell import function_job, shell, worker
from tests.eventually import PATIENCE_S, eventually_async

FOREVER = 1e6


async def test_a_job_succeeds(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        job = await corral.submit()
        head = await corral.until_ended(job)
        assert head.state is State.SUCCEEDED
        assert corral.facts(job) == [
            "JobSubmitted",
            "AttemptPlaced",
            "AttemptStarted",
            "JobSucceeded",
        ]


async def test_a_thousand_jobs_each_end_once_and_never_oversubscribe(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker("a"), worker("b", cpus=3)]) as corral:
        accepted = await corral.queue.submit([function_job(str(n)) for n in range(1000)])
        for one in accepted:
            await corral.until_ended(one.job)
        ends = [record.kind for record in corral.journal.scan()].count("JobSucceeded")
        assert ends == 1000
        assert corral.engine.most_running <= 5
        assert not corral.store.world.heads


async def test_a_failure_is_retried_as_often_as_the_job_allows(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit(retries=1)
        boom = Failure(code="exception", message="boom", type="ValueError")
        for attempt in (1, 2):
            await _running(corral, job, attempt)
            corral.engine.fail(job, attempt, boom)
        head = await corral.until_ended(job)
        assert (head.state, head.attempt) == (State.FAILED, 2)
        assert corral.facts(job).count("JobRequeued") == 1


async def test_a_lost_worker_costs_no_retry(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda a: FOREVER if a.number == 1 else 0.0) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        corral.engine.lose("w1")
        await corral.until(job, JobRequeued)
        corral.engine.restore("w1")
        head = await corral.until_ended(job)
        assert (head.state, head.attempt) == (State.SUCCEEDED, 2)


async def test_losses_end_too(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        died = Failure(code="process_died", message="killed")
        for attempt in range(1, 5):
            await _running(corral, job, attempt)
            corral.engine.fail(job, attempt, died)
        assert (await corral.until_ended(job)).state is State.FAILED


async def test_out_of_memory_goes_only_to_larger_gpus(tmp_path: Path) -> None:

    small, large = worker("small"), worker("large")
    big_card = replace(large.capabilities.gpus[0], vram_gb=80.0)
    large = replace(large, capabilities=replace(large.capabilities, gpus=(big_card,)))
    async with shell(tmp_path, [small, large], lambda _: FOREVER) as corral:
        job = await corral.submit(retries=3, needs=Needs(gpus=1))
        oom = Failure(code="out_of_memory", message="CUDA out of memory")
        await _running(corral, job, 1)
        assert corral.store.head(job).worker == "small"
        corral.engine.fail(job, 1, oom)
        await _running(corral, job, 2)
        assert corral.store.head(job).worker == "large"
        corral.engine.fail(job, 2, oom)
        assert (await corral.until_ended(job)).state is State.FAILED  # nothing larger is left


async def test_a_bad_job_fails_at_once(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit(retries=5)
        await _running(corral, job, 1)
        corral.engine.fail(job, 1, Failure(code="bad_package", message="not a zip"))
        assert (await corral.until_ended(job)).attempt == 1


async def test_cancel_while_waiting_and_while_running(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker(cpus=1, ahead=0)], lambda _: FOREVER) as corral:
        running = await corral.submit()
        waiting = await corral.submit()
        await _running(corral, running, 1)
        assert (await corral.queue.cancel(waiting)).state is State.CANCELLED
        assert (await corral.queue.cancel(running)).state is State.STOPPING
        assert (await corral.until_ended(running)).state is State.CANCELLED
        assert (await corral.queue.cancel(running)).state is State.CANCELLED


async def test_an_ended_job_is_not_cancelled_but_retried_as_a_new_one(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        job = await corral.submit()
        await corral.until_ended(job)
        with pytest.raises(Conflict, match="already succeeded"):
            await corral.queue.cancel(job)
        again = await corral.queue.retry(job)
        assert again != job
        assert (await corral.until_ended(again)).given.retry_of == job


async def test_a_late_result_is_an_orphan_and_a_doubled_one_is_nothing(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda a: FOREVER if a.number == 1 else 0.0) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        corral.engine.lose("w1")
        await corral.until(job, JobRequeued)
        corral.engine.restore("w1")
        head = await corral.until_ended(job)
        digest = corral.store.digest(head)
        late = AttemptExited(job, 1, "w1", 1.0, 1.0, digest, Blob.of(b"late"))
        doubled = AttemptExited(job, 2, "w1", 1.0, 1.0, digest, Blob.of(b"again"))
        await corral.intake.take([late, doubled, doubled])
        assert corral.facts(job)[-1] == "ResultOrphaned"
        assert corral.facts(job).count("ResultOrphaned") == 1
        assert corral.store.head(job).state is State.SUCCEEDED


async def test_a_worker_revoked_while_it_was_chosen(tmp_path: Path) -> None:
    """The placement is on disk when nobody knows that worker any more: the job goes elsewhere."""
    async with shell(tmp_path, []) as corral:
        jobs = [await corral.submit(text=str(n)) for n in range(2)]
        placed = [AttemptPlaced(job=job, at=1.0, attempt=1, worker="gone") for job in jobs]
        stopping = JobStopping(job=jobs[1], at=1.0, attempt=1)
        await corral.store.append([*placed, stopping])
        await corral.until(jobs[0], JobRequeued)
        assert corral.store.head(jobs[0]).state is State.QUEUED
        assert (await corral.until_ended(jobs[1])).state is State.CANCELLED
        assert (await corral.submit(text="later")) in corral.store.world.heads


async def test_nobody_speaks_for_another_workers_attempt(tmp_path: Path) -> None:
    workers = [worker("w1", ahead=0), worker("thief", cpus=0.5, ahead=0)]
    async with shell(tmp_path, workers, lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        digest = corral.store.digest(corral.store.head(job))
        stolen = AttemptExited(job, 1, "thief", 1.0, 1.0, digest, Blob.of(b"stolen"))
        said = AttemptOutput(job, 1, "thief", OutputFrame(1.0, "stdout", "lies"))
        await corral.intake.take([said, stolen])
        assert corral.store.head(job).state is State.RUNNING
        assert corral.spool.read(job, 1, 0).lines == []


async def test_a_result_for_another_document_fails_the_job(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        await corral.intake.take([AttemptExited(job, 1, "w1", 1.0, 1.0, "other", Blob.of(b""))])
        seen = await corral.until(job, JobFailed)
        assert isinstance(seen.fact, JobFailed)
        assert seen.fact.failure.code == "wrong_document"


async def test_a_key_names_one_job(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        both = await asyncio.gather(*(corral.submit(key="k") for _ in range(5)))
        assert len(set(both)) == 1
        await corral.until_ended(both[0])
        assert await corral.submit(key="k") == both[0]
        other_bytes = await corral.queue.submit([function_job("pickled elsewhere", key="k")])
        assert other_bytes[0].job == both[0]
        with pytest.raises(Conflict, match=f"belongs to job {both[0]}"):
            await corral.queue.submit([function_job(key="k", name="another")])


async def test_admission(tmp_path: Path) -> None:
    huge = Needs(gpus=9)
    async with shell(tmp_path, []) as corral:
        with pytest.raises(NoGpuWorkers, match="No GPU workers available") as refused:
            await corral.submit(queue_class=QueueClass.INTERACTIVE)
        assert refused.value.job_id is not None
        assert corral.store.head(refused.value.job_id).state is State.REJECTED
        waits = await corral.queue.submit([function_job()])
        assert "No worker is known" in waits[0].warning
    async with shell(tmp_path / "two") as corral:
        with pytest.raises(ExceedsAllWorkers, match="w1: needs 9 GPUs, it has 1"):
            await corral.submit(queue_class=QueueClass.INTERACTIVE, needs=huge)
        waiting = await corral.queue.submit([function_job(needs=huge)])
        assert "needs 9 GPUs" in waiting[0].warning
        assert corral.store.head(waiting[0].job).state is State.QUEUED
        forced = function_job(needs=huge, queue_class=QueueClass.INTERACTIVE, wait=True)
        assert (await corral.queue.submit([forced]))[0].warning


async def test_who_will_not_wait_is_refused_where_nobody_takes_work(tmp_path: Path) -> None:
    now = {"queue_class": QueueClass.INTERACTIVE, "wait": False}
    async with shell(tmp_path, [worker("w1"), replace(worker("tired"), draining=True)]) as corral:
        corral.engine.lose("w1")
        told = "w1: it is not connected; tired: it is draining"
        with pytest.raises(NoGpuWorkers, match=told):
            await corral.submit(**now)
        patient = await corral.queue.submit([function_job(queue_class=QueueClass.INTERACTIVE)])
        assert not patient[0].warning
        corral.engine.restore("w1")
        assert await corral.submit(**now)


async def test_a_worker_of_no_such_name_is_said(tmp_path: Path) -> None:
    slip = Needs(worker="gamnig")
    async with shell(tmp_path, [worker("gaming"), worker("barn")]) as corral:
        waits = await corral.queue.submit([function_job(needs=slip)])
        assert "no worker is called gamnig; did you mean gaming?" in waits[0].warning
        told = explain(corral.store, waits[0].job, corral.engine.workers())
        assert "no worker is called gamnig; did you mean gaming?" in told.summary
        with pytest.raises(
            ExceedsAllWorkers, match="no worker is called x; there are barn, gaming"
        ):
            await corral.submit(needs=Needs(worker="x"), queue_class=QueueClass.INTERACTIVE)


async def test_bad_submissions_leave_nothing(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        missing = Job(work=FunctionCall(function=Blob("0" * 64, 5), arguments=Blob.of(b"")))
        with pytest.raises(InvalidJob, match="PutPackage"):
            await corral.queue.submit([function_job(), missing])
        with pytest.raises(TooLarge):
            await corral.submit(name="n" * 200_000)
        assert corral.journal.last_seq() == 0
        with pytest.raises(JobNotFound):
            await corral.queue.find("nonsense")


async def test_bytes_are_as_large_as_they_are_whatever_is_said(tmp_path: Path) -> None:
    """A worker makes room for what it is about to fetch, and waits until it has so much."""
    async with shell(tmp_path) as corral:
        stored = await corral.queue._blobs.put_bytes(b"zip")
        said = [replace(stored, size=size) for size in (0, 1, 2**53, 2**60)]
        calls = [FunctionCall(Blob.of(b"f"), Blob.of(b"a"), code) for code in said]
        for accepted in await corral.queue.submit([Job(work=call) for call in calls]):
            head = corral.store.head(accepted.job)
            document = decode_document(corral.store.journal.document(head.submitted_seq))
            assert isinstance(document.work, FunctionCall)
            assert document.work.code == stored


async def test_why_names_a_reason_for_every_worker(tmp_path: Path) -> None:
    workers = [worker("busy", cpus=1, ahead=0), worker("bare", gpus=0, ahead=0)]
    async with shell(tmp_path, workers, lambda _: FOREVER) as corral:
        first = await corral.submit(needs=Needs(gpus=1))
        await _running(corral, first, 1)
        second = await corral.submit(needs=Needs(gpus=1))
        known = corral.loop.workers()
        reason = explain(corral.store, second, known)
        assert reason.workers == {
            "busy": "busy: needs 1 CPU, 0 free",
            "bare": "needs 1 GPU, it has none",
        }
        told = explain(corral.store, first, known)
        assert "placed on busy: the only worker that fits" in told.summary


async def test_why_speaks_of_models(tmp_path: Path) -> None:
    present = ("flux", "sdxl")
    workers = [worker("has", ahead=0, models_present=present), worker("bare", ahead=0)]
    async with shell(tmp_path, workers, lambda _: FOREVER) as corral:
        first = await corral.submit(needs=Needs(gpus=1, models=("flux",)))
        await _running(corral, first, 1)
        await corral.submit(needs=Needs(gpus=1, models=("flux",)))
        other = await corral.submit(needs=Needs(gpus=1, models=("sdxl",)))
        known = corral.loop.workers()
        assert explain(corral.store, other, known).workers == {
            "has": "it has flux loaded and jobs for that wait; it loads sdxl after them",
            "bare": "it lacks the model sdxl and fetches none",
        }
        told = explain(corral.store, first, known).summary
        assert "the only worker that fits; it loads flux from its disk" in told


async def test_why_says_what_a_worker_is_kept_free_for(tmp_path: Path) -> None:
    ours = [worker("big", ahead=0), worker("mine", gpus=0, reserved_for="interactive")]
    async with shell(tmp_path, ours, keep_for_interactive=1) as corral:
        job = await corral.submit(queue_class=QueueClass.BATCH)
        now = corral.loop.snapshot(time.time())
        assert explain(corral.store, job, corral.loop.workers(), now=now).workers == {
            "big": "it is kept free for interactive jobs (keep_for_interactive)",
            "mine": "it is reserved for interactive jobs",
        }


async def test_why_names_the_job_that_a_worker_is_kept_for(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker("w", ahead=0)], lambda _: FOREVER) as corral:
        first = await corral.submit()
        await _running(corral, first, 1)
        await corral.loop.hold(True, by="a test")
        large = await corral.submit(needs=Needs(cpus=2.0))
        small = await corral.submit(needs=Needs(cpus=0.5))
        now = corral.loop.snapshot(time.time() + 100.0)  # when the large one has waited too long
        told = explain(corral.store, small, corral.loop.workers(), now=now)
        assert told.workers == {"w": f"it is kept free for job {large}, which has waited longest"}
        told = explain(corral.store, large, corral.loop.workers(), now=now)
        assert told.workers == {"w": "busy: needs 2 CPUs, 1 free"}


async def test_what_a_worker_needed_for_such_jobs_is_remembered(tmp_path: Path) -> None:
    slow, quick = worker("a", ahead=0), worker("b", ahead=0)
    seconds = {"a": 0.2, "b": 0.01}
    async with shell(tmp_path, [slow, quick], lambda one: seconds[one.worker]) as corral:
        for job in [await corral.submit() for _ in range(4)]:
            await corral.until_ended(job)
        await corral.until_ended(job := await corral.submit())
        told = explain(corral.store, job, corral.loop.workers())
        placed = next(line for line in told.history if "placed on" in line)
        assert "placed on b" in placed
        assert "such jobs took 0.01" in placed


async def test_output_is_followed_from_any_cursor(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        lines = [f"line {n}\n" for n in range(50)]
        await corral.intake.take(
            [
                AttemptOutput(job, 1, "w1", OutputFrame(float(n), "stdout", text))
                for n, text in enumerate(lines)
            ]
        )
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        seen = [one async for batch in corral.feed.watch(job, Cursor()) for one in batch]
        assert [one.frame for one in seen if one.frame][7].find(b"line 7") > 0
        for start in range(0, len(seen), 7):
            again = [
                one async for batch in corral.feed.watch(job, seen[start].cursor) for one in batch
            ]
            assert again == seen[start + 1 :]


async def test_a_crowd_of_watchers_sees_everything_in_order(tmp_path: Path) -> None:
    """More of them than are woken in one moment, some late, one that stops reading."""

    async def frames(job: str) -> list[bytes]:
        return [one.frame async for page in corral.feed.watch(job, Cursor()) for one in page]

    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        stalled = corral.feed.watch(job, Cursor())
        await anext(stalled)
        crowd = [asyncio.create_task(frames(job)) for _ in range(3 * AT_ONCE)]
        for n in range(100):
            frame = OutputFrame(float(n), "stdout", f"line {n}\n")
            await corral.intake.take([AttemptOutput(job, 1, "w1", frame)])
            await asyncio.sleep(0)
            if n == 50:
                crowd += [asyncio.create_task(frames(job)) for _ in range(AT_ONCE)]
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        for seen in await asyncio.gather(*crowd):
            texts = [decode_frame(line) for line in seen if line]
            assert [f.text for f in texts if isinstance(f, OutputFrame)] == [
                f"line {n}\n" for n in range(100)
            ]
        await stalled.aclose()


async def test_a_batch_is_watched_from_any_cursor(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        jobs = [function_job(str(n), batch="b") for n in range(20)]
        accepted = {one.job for one in await corral.queue.submit(jobs)}
        seen = []
        async for batch in corral.feed.watch_batch("b", Cursor()):
            seen.extend(batch)
            if len(seen) == 20:
                break
        assert {one.job for one in seen} == accepted
        rest = []
        async for batch in corral.feed.watch_batch("b", seen[4].cursor):
            rest.extend(batch)
            if len(rest) == 15:
                break
        assert [one.job for one in rest] == [one.job for one in seen[5:]]


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker(cpus=1, ahead=0)], lambda _: FOREVER) as corral:
        jobs = [await corral.submit(text=str(n), key=f"k{n}") for n in range(10)]
        await _running(corral, jobs[0], 1)
        heads = dict(corral.store.world.heads)
    async with shell(tmp_path, []) as corral:
        assert corral.store.world.heads == heads
        assert await corral.submit(text="3", key="k3") == jobs[3]
    async with shell(tmp_path) as corral:
        for job in jobs:
            assert (await corral.until_ended(job)).state is State.SUCCEEDED
        assert corral.store.head(jobs[0]).attempt == 2


async def _running(corral: object, job: str, attempt: int) -> None:
    """Waits until this attempt has started."""
    from tests.controller.shell import Shell

    assert isinstance(corral, Shell)
    async for batch in corral.feed.watch(job, Cursor()):
        for seen in batch:
            if isinstance(seen.fact, AttemptStarted) and seen.fact.attempt == attempt:
                return


async def test_keys_crosswise_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        one, two = function_job("1", key="k1"), function_job("2", key="k2")
        async with asyncio.timeout(60):
            first, second = await asyncio.gather(
                corral.queue.submit([one, two]), corral.queue.submit([two, one])
            )
        assert [job.job for job in first] == [job.job for job in reversed(second)]
        twice = await corral.queue.submit([one, one])
        assert twice[0] == twice[1]


async def test_a_batch_is_cancelled_whole(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker(cpus=1, ahead=1)], lambda _: FOREVER) as corral:
        jobs = [function_job(str(n), batch="b") for n in range(6)]
        accepted = [one.job for one in await corral.queue.submit(jobs)]
        other = await corral.submit()
        await _running(corral, accepted[0], 1)
        assert await corral.queue.cancel_batch("b") == 6
        for job in accepted:
            assert (await corral.until_ended(job)).state is State.CANCELLED
        assert corral.store.head(other).state is not State.CANCELLED


async def test_the_latest_word_of_a_job_is_kept_also_after_its_end(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        told = [
            ProgressFrame(1.0, fraction=0.5, message="half"),
            ProgressFrame(2.0, metrics={"loss": 0.3}, step=1),
            ProgressFrame(3.0, metrics={"accuracy": 0.9}, step=2),
        ]
        await corral.intake.take([AttemptOutput(job, 1, "w1", frame) for frame in told])
        expected = ProgressFrame(3.0, 0.5, "half", {"loss": 0.3, "accuracy": 0.9}, 2)
        assert corral.feed.progress(corral.store.head(job)) == expected
        note = CheckpointStored(job=job, at=4.0, attempt=1, size=1, sha256="0" * 64)
        await corral.store.append([note])
        assert corral.feed.progress(corral.store.head(job)) == expected
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        assert corral.feed.progress(await corral.until_ended(job)) == expected


async def test_an_end_that_is_on_disk_but_not_in_memory_yet_is_still_an_end(tmp_path: Path) -> None:
    """A watcher may look between a commit and its publication: two stores, one of them behind."""
    async with shell(tmp_path, []) as behind:
        await behind.submit(batch="b")
        ahead = Store(Journal(tmp_path / "journal"), World())
        ahead.recover()
        (job,) = ahead.world.heads
        await ahead.append([JobCancelled(job=job, at=1.0)])
        async for batch in behind.feed.watch_batch("b", Cursor()):
            assert [type(seen.fact) for seen in batch] == [JobCancelled]
            break
        await ahead.close()


async def test_a_caller_who_leaves_in_the_middle_leaves_no_half_change(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker(cpus=1, ahead=0)], lambda _: FOREVER) as corral:
        for turns in range(8):
            jobs = [function_job(str(n), key=f"{turns}-{n}", batch=f"b{turns}") for n in range(20)]
            first = asyncio.create_task(corral.queue.submit(jobs))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            again = await corral.queue.submit(jobs)
            living = [h for h in corral.store.world.heads.values() if h.batch == f"b{turns}"]
            assert {one.job for one in again} == {head.id for head in living}
            assert len(living) == 20
        job = next(iter(corral.store.world.heads))
        await _running(corral, job, 1)
        leaving = asyncio.create_task(corral.queue.cancel(job))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await corral.until_ended(job)).state is State.CANCELLED


async def test_what_was_sent_after_a_worker_registered_is_not_lost(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        (known,) = corral.engine.workers()
        await corral.intake.take([WorkerJoined(known.id, known.name, known.capabilities, ())])
        assert corral.store.head(job).state is State.RUNNING


async def test_what_was_placed_and_perhaps_never_sent_begins_anew(tmp_path: Path) -> None:
    """kill -9 between the placement and its start. Nobody knows that it never began: it is another
    attempt, and nobody failed."""
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        corral.engine.start = lambda attempt: None  # type: ignore[method-assign]
        job = await corral.submit()
        await corral.until(job, AttemptPlaced)
    async with shell(tmp_path) as corral:
        head = await corral.until_ended(job)
        assert (head.state, head.attempt) == (State.SUCCEEDED, 2)
        assert not corral.store.world.circuits


async def test_what_never_reached_a_worker_that_remembers_is_sent_again(tmp_path: Path) -> None:
    """kill -9 between the placement and its start, and the worker lived on: it is the same
    attempt."""
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        corral.engine.start = lambda attempt: None  # type: ignore[method-assign]
        job = await corral.submit()
        await corral.until(job, AttemptPlaced)
        del corral.engine.start
        (known,) = corral.engine.workers()
        back = WorkerJoined(known.id, known.name, known.capabilities, remembers=True)
        await corral.intake.take([back])
        await _running(corral, job, 1)
        await corral.intake.take([back])
        await _running(corral, job, 1)
        assert not corral.store.world.circuits


async def test_a_worker_is_not_blamed_for_what_went_down_with_the_controller(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        await _running(corral, job, 2)
        assert not corral.store.world.circuits
        corral.engine.lose("w1")
        await eventually_async(lambda: not corral.store.world.held, "nothing is held")
        assert len(corral.store.world.circuits["w1"].failed) == 1, "but for what came after"


async def test_an_engine_that_cannot_be_asked_is_silent_and_nothing_is_lost(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await _running(corral, job, 1)
        running, asked = corral.engine.running, asyncio.Event()

        async def unreachable() -> NoReturn:
            asked.set()
            raise ConnectionError("Docker does not answer")

        corral.engine.running = unreachable  # type: ignore[method-assign]
        corral.engine.restore("w1")
        await asked.wait()
        assert "Docker does not answer" in corral.loop.fleet.trouble()["simulated"]
        assert corral.store.head(job).state is State.RUNNING
        corral.engine.running = running  # type: ignore[method-assign]
        other = await corral.submit(text="other", needs=Needs())
        await _running(corral, other, 1)
        assert corral.store.head(job).attempt == 1
        assert not corral.loop.fleet.trouble()


async def test_an_engine_that_fails_is_asked_again(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        again = asyncio.Event()

        class Failing:
            name, asked = "failing", 0

            async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
                self.asked += 1
                if self.asked == 1:
                    raise ConnectionError("the platform is away")
                again.set()
                yield []
                await asyncio.Event().wait()

        intake = Intake(
            Failing(),  # type: ignore[arg-type]
            corral.store,
            corral.spool,
            policy=Policy(),
            loop=corral.loop,
            heard=lambda job: None,
            stop_grace_s=1.0,
        )
        task = asyncio.create_task(intake.run())
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
        assert not task.done()
        task.cancel()
