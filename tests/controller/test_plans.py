"""Plans become batches: once, whatever is interrupted, and with ids that records know."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.controller.files.jsonl_file import JsonlFile
from corral.controller.images.paces import Paces
from corral.controller.images.plans import BuiltBatch, Plans
from corral.controller.images.presets import PresetFiles
from corral.controller.jobs.admission import Accepted
from corral.controller.jobs.retrying import Retry
from corral.core.access import Caller, Role
from corral.core.errors import (
    Conflict,
    CorralError,
    ExceedsAllWorkers,
    InvalidPlan,
    InvalidRequest,
    PresetNotFound,
    StorageFailed,
    Unavailable,
)
from corral.core.images.pipeline import Record, spelled_out
from corral.core.job import Job, PipelineCall, decode_document
from corral.core.worker import Worker
from tests.controller.shell import Shell, shell, worker
from tests.eventually import eventually_async

ANN = Caller("ann", Role.SUBMIT)
PLAN: dict[str, Any] = {
    "name": "castles",
    "backend": "sketch",
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
    "prompts": [{"positive": "a castle, [[weather]]"}],
    "matrix": {"slots": {"weather": ["rain", "snow", "sun"]}},
    "batches": 2,
}


def drawer(name: str = "w1", **more: Any) -> Worker:
    return worker(name, workloads=("python", "pipeline"), task_types=("sketch",), **more)


def plans_of(corral: Shell, home: Path, paces: Paces | None = None) -> Plans:
    presets = PresetFiles(home / "presets")
    return Plans(corral.queue, corral.loop, paces or Paces(), presets)


def sent(**changes: Any) -> bytes:
    return json.dumps({**PLAN, **changes}).encode()


async def submitted(plans: Plans, plan: bytes, key: str) -> BuiltBatch:
    return await plans.submit(await plans.build(plan, key, ANN))


def documents(corral: Shell) -> dict[str, Job]:
    found = {}
    for job, head in corral.store.world.heads.items():
        found[job] = decode_document(corral.store.journal.document(head.submitted_seq))
    return found


async def test_a_record_knows_its_jobs_id(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        built = await submitted(plans_of(corral, tmp_path), sent(duration_s=7200), "k1")
        found = documents(corral)
        assert {document.duration_s for document in found.values()} == {7200}
        assert len(found) == len(built.jobs) == 6
        for job, document in found.items():
            assert isinstance(document.work, PipelineCall)
            assert document.work.record.job_id == job
            assert (document.user, document.batch) == ("ann", built.batch)
            assert document.labels == {"row": str(document.work.record.row), "model": "sketch"}
            assert document.needs.task == "sketch"
        assert built.batch.startswith("castles-")
        assert [one for one in built.warnings if "No worker is known" in one]


async def test_a_key_is_good_for_one_plan(tmp_path: Path) -> None:
    """The images of two plans in one batch would be neither's."""
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        await submitted(plans, sent(batches=1), "k1")
        with pytest.raises(Conflict, match="Use a new key"):
            await submitted(plans, sent(prompts=["a moat, [[weather]]"]), "k1")
        assert len(documents(corral)) == 3
        for job in documents(corral):
            await corral.queue.cancel(job)
        with pytest.raises(Conflict, match="Use a new key"):
            await submitted(plans, sent(prompts=["a moat, [[weather]]"]), "k1")
        assert len((await submitted(plans, sent(batches=1), "k1")).jobs) == 3


async def test_a_cancelled_batch_grows_no_more(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        built = await plans.build(sent(batches=1000), "k1", ANN)
        begun = asyncio.Event()
        corral.store.listen(lambda changes: begun.set())
        submitting = asyncio.create_task(plans.submit(built))
        await begun.wait()
        await corral.queue.cancel_batch(built.batch)
        with pytest.raises(Conflict, match="cancelled while it was submitted"):
            await submitting
        assert not corral.store.world.heads


async def test_a_preset_that_could_not_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presets = PresetFiles(tmp_path / "presets")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        (tmp_path / "presets").mkdir()
        with pytest.raises(StorageFailed, match="No space left"):
            await presets.save("p", b"{}")
    assert not list((tmp_path / "presets").iterdir())
    assert (await presets.save("p", b"{}")).name == "p"


async def test_a_plan_of_brackets_is_not_read(tmp_path: Path) -> None:
    """Read as any JSON, it would keep the controller from all else for as long as that takes."""
    async with shell(tmp_path, []) as corral:
        with pytest.raises(InvalidPlan, match="no JSON: none with more than 1,000,000 lists"):
            await plans_of(corral, tmp_path).build(b'{"pack": [' + b"[]," * 1_000_000 + b"[]]}")


async def test_a_plan_reads_no_preset_but_its_own(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        await plans.presets.save("mine", b'{"txt2img": {"model": "sketch"}}')
        (tmp_path / "presets" / "other.json").write_bytes(b"[" * 100_000)
        plan = {key: one for key, one in PLAN.items() if key != "base"}
        assert (await plans.build(json.dumps({**plan, "preset": "mine"}).encode())).jobs
        with pytest.raises(StorageFailed, match="cannot be read"):
            await plans.build(json.dumps({**plan, "preset": "other"}).encode())


async def test_a_retried_image_job_has_an_id_of_its_own(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        await submitted(plans_of(corral, tmp_path), sent(batches=1), "k")
        first = min(documents(corral))
        await corral.queue.cancel(first)
        again = await corral.queue.retry(first, Retry(worker="w9", apart=True))
        document = documents(corral)[again]
        assert isinstance(document.work, PipelineCall)
        assert document.work.record.job_id == again != first
        assert (document.needs.worker, document.batch, document.retry_of) == ("w9", "", first)


async def test_the_same_key_is_the_same_batch(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        both = await asyncio.gather(*(submitted(plans, sent(), "k1") for _ in range(2)))
        third = await submitted(plans, sent(), "k1")
        assert {one.batch for one in (*both, third)} == {both[0].batch}
        assert len(documents(corral)) == 6
        other = await submitted(plans, sent(), "k2")
        assert other.batch != third.batch
        assert len(documents(corral)) == 12


async def test_an_interrupted_submission_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        monkeypatch.setattr("corral.controller.images.plans.SLICE", 2)
        submit, calls = corral.queue.submit, 0

        async def cut(jobs: Sequence[Job], **more: Any) -> list[Accepted]:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise Unavailable("The controller is stopping.")
            return await submit(jobs, **more)

        monkeypatch.setattr(corral.queue, "submit", cut)
        with pytest.raises(Unavailable):
            await submitted(plans, sent(), "k")
        before = documents(corral)
        assert len(before) == 2
        built = await submitted(plans, sent(), "k")
        after = documents(corral)
        assert len(after) == 6
        assert before.items() <= after.items()
        assert {one.batch for one in after.values()} == {built.batch}
        seeds = [
            one.work.record.seed for one in after.values() if isinstance(one.work, PipelineCall)
        ]
        assert len(set(seeds)) == 6


async def test_who_leaves_has_submitted_all_of_it(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        built = await plans.build(sent(), "k", ANN)
        assert not corral.store.world.heads
        leaving = asyncio.create_task(plans.submit(built))
        await asyncio.sleep(0)
        leaving.cancel()
        await eventually_async(lambda: len(corral.store.world.heads) == 6, "six jobs")


async def test_a_dry_run_submits_nothing_and_shows_whole_records(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        plans = plans_of(corral, tmp_path)
        built = await plans.build(sent(seed=7))
        again = await plans.build(sent(seed=7))
        assert not documents(corral)
        assert built.estimate_s is None
        lines = b"".join([some async for some in plans.lines(built)]).splitlines()
        assert [json.loads(line) for line in lines] == list(again.records)
        first = json.loads(lines[0])
        assert first["positive"] == "a castle, rain"
        assert first["steps"] == 20, "what is as usual is shown too"
        assert first["stages"][0]["stage"] == "txt2img"
        assert "job_id" not in first


async def test_an_interactive_plan_is_refused_whole(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker("w1", gpus=0)]) as corral:
        mixed = sent(**{"class": "interactive"})
        with pytest.raises(ExceedsAllWorkers, match="does not accept pipeline") as refused:
            await submitted(plans_of(corral, tmp_path), mixed, "k")
        assert refused.value.job_id
        assert not documents(corral)


async def test_an_estimate_comes_from_what_was_made_before(tmp_path: Path) -> None:
    """Of another size, with other steps, by another controller: 2.5 s for 20 steps of a 64 × 64."""
    lines, seen = JsonlFile(tmp_path / "records.jsonl"), Paces()
    seen.recall(lines)
    record = Record("x", model="sketch", backend="sketch", width=64, height=64)
    line = msgspec.json.encode({"seconds": 2.5, "record": spelled_out(record), "job_id": "j"})
    loading = line.replace(b"2.5", b"60.0", 1)
    nothing = b'{"seconds": 1, "record": null}'
    lines.append([one + b"\n" for one in (b"{torn", loading, line, line, nothing)])
    again = Paces()
    again.recall(lines)
    async with shell(tmp_path, [drawer(cpus=2)]) as corral:
        assert (await plans_of(corral, tmp_path, seen).build(sent())).estimate_s is None
        plans = plans_of(corral, tmp_path, again)
        assert (await plans.build(sent())).estimate_s == pytest.approx(6 / 2 * 2.5)
        base = {"txt2img": {"model": "sketch", "width": 128, "height": 64, "steps": 10}}
        half = sent(base=base, batches=1)
        assert (await plans.build(half)).estimate_s == pytest.approx(3 / 2 * 2.5)
        other = {"txt2img": base["txt2img"], "upscale": {"factor": 2}}
        assert (await plans.build(sent(base=other))).estimate_s is None
        nobody = (await plans.build(sent(needs={"worker": "elsewhere"}))).estimate_s
        assert nobody is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "A plan is"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON|A plan is"),
        (sent(name="a\nb"), "printed"),
        (sent(stages=["upscale"], inputs=["x.png"]), "no image 'x.png'"),
        (sent(files={"x.png": {}}), "needs the sha256"),
        (sent(files={"../x": {"sha256": "0" * 64}}), r"\.\./x"),
        (sent(files=[]), "files"),
    ],
)
async def test_a_plan_that_is_none(tmp_path: Path, data: bytes, said: str) -> None:
    async with shell(tmp_path, []) as corral:
        with pytest.raises(CorralError, match=said):
            await submitted(plans_of(corral, tmp_path), data, "k")
        with pytest.raises(InvalidRequest, match="printable"):
            await submitted(plans_of(corral, tmp_path), sent(), "k\n")
        assert not documents(corral)


async def test_presets(tmp_path: Path) -> None:
    presets = PresetFiles(tmp_path / "presets")
    assert presets.names() == []
    base = {"txt2img": {"model": "sketch", "width": 64, "height": 64, "steps": 3}}
    saved = await presets.save("small", json.dumps(base).encode())
    assert (saved.name, saved.value) == ("small", base)
    file = tmp_path / "presets" / "small.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [name for name, _ in PresetFiles(tmp_path / "presets").names()] == ["small"]
    async with shell(tmp_path / "home", []) as corral:
        plans = Plans(corral.queue, corral.loop, Paces(), presets)
        plan = {"preset": "small", "backend": "sketch", "prompts": ["x"]}
        (record,) = (await plans.build(json.dumps(plan).encode())).records
        assert (record["steps"], record["width"]) == (3, 64)
        with pytest.raises(PresetNotFound, match="Did you mean `small`"):
            await plans.build(json.dumps({**plan, "preset": "smal"}).encode())
    await presets.remove("small")
    with pytest.raises(PresetNotFound):
        presets.get("small")
    with pytest.raises(PresetNotFound):
        await presets.remove("small")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "x" * 65, "a\0b", "é"])
async def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    presets = PresetFiles(tmp_path / "presets")
    for call in (lambda: presets.get(name), lambda: presets._path(name)):
        with pytest.raises(InvalidRequest):
            call()
    with pytest.raises(InvalidRequest):
        await presets.save(name, b"{}")
    assert not (tmp_path / "presets").exists()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b'{"txt2img": {"step": 3}}', b'{"a":' * 100_000]
)
async def test_what_is_no_base_is_not_saved(tmp_path: Path, data: bytes) -> None:
    presets = PresetFiles(tmp_path / "presets")
    with pytest.raises((InvalidRequest, InvalidPlan)):
        await presets.save("x", data)
    assert presets.names() == []
