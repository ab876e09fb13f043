"""A start from a snapshot knows what a start from the whole journal knows, or does not use it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.journal import snapshot, sql
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord
from corral.controller.journal.snapshot import JOBS_AT_ONCE, JournalSnapshot
from corral.controller.recovery.proof_process import prove
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.errors import JournalDamaged
from corral.core.events import JobSubmitted, Journaled
from corral.core.job import Head, Needs, Shape, State
from tests.controller.test_pruning import SOON_S, damage, fill
from tests.controller.test_store import FACTS, submitted


def open_store(folder: Path, *, every: int = 1_000_000) -> Store:
    """By default one that takes no snapshot of its own."""
    folder.mkdir(exist_ok=True, parents=True)
    store = Store(Journal(folder), World(), snapshot_every=every)
    store.recover()
    return store


def write(folder: Path, known: JournalSnapshot) -> None:
    snapshot.write(folder, [msgspec.msgpack.encode(known)])


async def take(store: Store) -> JournalSnapshot:
    """What is known now, as it would be written after a commit."""
    store.snapshots.take(store.journal.record(store.seq), store.world.heads.values())
    store.snapshots.close()
    found = snapshot.read(store.journal.folder)
    assert found is not None
    assert found.seq == store.seq
    return found


async def filled(folder: Path, *, behind: int = 2) -> JournalSnapshot:
    """Ended jobs and one that lives, a snapshot, and some more behind it."""
    store = open_store(folder)
    await fill(store, 6, [0, 1, 2, 0, 1, 3])
    found = await take(store)
    for n in range(behind):
        await store.enqueue([submitted(f"new{n}")], {f"new{n}": b"document"})
    await store.close()
    return found


def known(store: Store) -> dict[str, object]:
    """Everything a start finds out about living jobs, and what follows from it."""
    world = store.world
    return {
        "seq": store.seq,
        "heads": world.heads,
        "held": world.held,
        "lines": {shape: list(line) for shape, line in world.lines.items()},
        "keys": world.keys,
        "batches": world.batches,
        "waiting": world.waiting,
    }


def proof(folder: Path, until: int) -> list[int]:
    """What the background proof does, here and at once."""
    with contextlib.closing(Journal(folder)) as journal:
        return list(prove(journal, until))


# --- the same as without ---


@given(
    steps=st.lists(st.tuples(st.sampled_from("abcdef"), FACTS), max_size=60),
    cut=st.integers(0, 60),
    pruned=st.sets(st.sampled_from("abcdef"), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_any_history_from_any_snapshot(
    steps: list[tuple[str, object]], cut: int, pruned: set[str]
) -> None:
    async def scenario(folder: Path) -> None:
        store = open_store(folder)
        await store.append([submitted("first")])
        born: set[str] = set()
        for number, (job, make) in enumerate(steps, start=1):
            if number == cut:
                await take(store)
            fact: Journaled = make(job, number)  # type: ignore[operator]
            if isinstance(fact, JobSubmitted):
                if job in born:
                    continue
                born.add(job)
            await store.append([fact], skip_conflicts=True)
        ended = [job for job in sorted(pruned & born) if job not in store.world.heads]
        await store.prune(ended, SOON_S)
        await store.close()
        quick = open_store(folder)
        taken = snapshot.read(folder)
        if taken is not None and quick.snapshots.unproven:
            assert quick.snapshots.unproven == taken.seq
            proof(folder, taken.seq)
        found = known(quick)
        await quick.close()
        snapshot.drop(folder)
        whole = open_store(folder)
        assert known(whole) == found
        assert not whole.snapshots.unproven
        await whole.close()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(scenario(Path(name)))


async def test_one_is_taken_every_so_many_records(tmp_path: Path) -> None:
    store = open_store(tmp_path, every=10)
    for n in range(25):
        await store.append([submitted(f"j{n}")])
        store.snapshots.close()
    taken = snapshot.read(tmp_path)
    assert taken is not None
    assert taken.seq == 20
    assert len(taken.living) == 20
    await store.close()
    store = open_store(tmp_path, every=10)
    assert store.snapshots.unproven == 20
    assert len(store.world.heads) == 25
    await store.append([submitted(f"k{n}") for n in range(30)])
    store.snapshots.close()
    taken = snapshot.read(tmp_path)
    assert taken is not None
    assert taken.seq == 20, "no other one before the past is proven"
    store.snapshots.unproven = 0
    await store.append([submitted("last")])
    store.snapshots.close()
    taken = snapshot.read(tmp_path)
    assert taken is not None
    assert taken.seq == 56
    await store.close()


async def test_a_start_that_read_much_leaves_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.append([submitted(f"j{n}") for n in range(30)])
    await store.close()
    assert snapshot.read(tmp_path) is None
    await open_store(tmp_path, every=10).close()
    taken = snapshot.read(tmp_path)
    assert taken is not None
    assert taken.seq == 30


async def test_keys_of_the_past_are_found_before_and_after_they_are_read(tmp_path: Path) -> None:
    await filled(tmp_path)
    store = open_store(tmp_path)
    assert store.snapshots.unproven
    assert store.journal.ended_by_keys(["key-job1", "key-none"]) == {"key-job1": "job1"}
    from corral.controller.recovery.start import read_keys

    await store.know_keys(read_keys(store.journal))
    assert store.journal.ended_by_keys(["key-job1", "key-none"]) == {"key-job1": "job1"}
    await store.close()


# --- one that is of no use ---


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def of_another_schema(path: Path) -> None:
    found = snapshot.read(path.parent)
    assert found is not None
    old = JournalSnapshot(found.seq, found.crc, found.living, schema=sql.SCHEMA_VERSION - 1)
    write(path.parent, old)


def of_another_journal(path: Path) -> None:
    found = snapshot.read(path.parent)
    assert found is not None
    write(path.parent, JournalSnapshot(found.seq, found.crc ^ 1, found.living))


def of_the_future(path: Path) -> None:
    found = snapshot.read(path.parent)
    assert found is not None
    write(path.parent, JournalSnapshot(found.seq + 1000, found.crc, found.living))


def with_an_ended_job(path: Path) -> None:
    """The last record of job0 is not its end: but its chain leads there."""
    found = snapshot.read(path.parent)
    assert found is not None
    with contextlib.closing(Journal(path.parent)) as journal:
        ended = journal.ended("job0")
    assert ended is not None
    living = {**found.living, "job0": ended.last_seq}
    write(path.parent, JournalSnapshot(found.seq, found.crc, living))


@pytest.mark.parametrize(
    "spoil",
    [
        cut_off,
        emptied,
        flipped,
        of_another_schema,
        of_another_journal,
        of_the_future,
        with_an_ended_job,
    ],
)
async def test_a_snapshot_that_does_not_fit_is_not_used(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    await filled(tmp_path)
    spoil(tmp_path / snapshot.NAME)
    store = open_store(tmp_path)
    assert not store.snapshots.unproven, "it used it"
    assert set(store.world.heads) == {"living", "new0", "new1"}
    await store.close()


async def test_one_whose_last_record_is_pruned_is_not_used(tmp_path: Path) -> None:
    await filled(tmp_path)
    store = open_store(tmp_path)
    last = store.journal.record(store.snapshots.unproven)
    await store.prune([last.job], SOON_S)
    await store.close()
    store = open_store(tmp_path)
    assert not store.snapshots.unproven
    assert set(store.world.heads) == {"living", "new0", "new1"}
    await store.close()


async def test_a_snapshot_that_left_a_job_out_is_found(tmp_path: Path) -> None:
    """Where a record behind it speaks of the job, at the start; else by the proof."""
    found = await filled(tmp_path)
    write(tmp_path, JournalSnapshot(found.seq, found.crc, {}))
    store = open_store(tmp_path)
    assert "living" not in store.world.heads
    await store.close()
    with pytest.raises(JournalDamaged, match="of job living"):
        proof(tmp_path, found.seq)


# --- damage ---


async def test_damage_in_the_past_is_named_by_the_proof(tmp_path: Path) -> None:
    found = await filled(tmp_path)
    with contextlib.closing(Journal(tmp_path)) as journal:
        ended = journal.ended("job2")
    assert ended is not None
    damage(tmp_path, f"UPDATE journal SET at = at + 1 WHERE seq = {ended.last_seq}")
    store = open_store(tmp_path)
    assert store.snapshots.unproven == found.seq
    with pytest.raises(JournalDamaged, match=f"record {ended.last_seq} is the first one lost"):
        proof(tmp_path, found.seq)
    store.snapshots.damaged("The journal is damaged.")
    await store.close()
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=f"record {ended.last_seq} is the first one lost"):
            open_store(tmp_path)


PAST = {
    "a lost record": "DELETE FROM journal WHERE seq = 9",
    "a lost row": "DELETE FROM history WHERE job = 'job3'",
    "another row": "UPDATE history SET seconds = seconds + 1 WHERE job = 'job3'",
    "a row that leads elsewhere": "UPDATE history SET last_seq = last_seq - 1 WHERE job = 'job3'",
    "a row too many": (
        "INSERT INTO history SELECT 'nobody', state, submitted_seq, last_seq, ended_at, batch, key,"
        " submitted_at, seconds, class, worker, user, name, labels, code, message FROM history"
        " WHERE job = 'job3'"
    ),
    "an interval that nobody pruned": "INSERT INTO pruned VALUES (3, 4, 1)",
}


@pytest.mark.parametrize("statement", PAST.values(), ids=PAST.keys())
async def test_the_proof_finds_what_a_whole_start_finds(tmp_path: Path, statement: str) -> None:
    found = await filled(tmp_path)
    damage(tmp_path, statement)
    with pytest.raises(JournalDamaged) as proven:
        proof(tmp_path, found.seq)
    snapshot.drop(tmp_path)
    with pytest.raises(JournalDamaged) as refused:
        open_store(tmp_path)
    assert proven.value.message == refused.value.message


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET document = 'other' WHERE job = 'living'",
        "UPDATE journal SET body = replace(body, 'd', 'e') WHERE job = 'living'",
        "UPDATE journal SET document = 'other' WHERE job = 'new0'",
        "DELETE FROM journal WHERE job = 'new0'",
        "DELETE FROM journal WHERE job = 'new1'",
        "DELETE FROM journal WHERE job = 'living'",
    ],
)
async def test_what_would_be_acted_upon_is_proven_first(tmp_path: Path, statement: str) -> None:
    await filled(tmp_path)
    damage(tmp_path, statement)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="is the first one lost"):
            open_store(tmp_path)


async def test_a_proof_while_others_write_and_prune(tmp_path: Path) -> None:
    """Between any two sections the journal goes on: that is no damage."""
    store = open_store(tmp_path)
    for n in range(1500):
        await store.append([submitted(f"w{n}")])
    jobs = await fill(store, 600)
    taken = await take(store)
    with contextlib.closing(Journal(tmp_path)) as journal:
        steps = 0
        for _ in prove(journal, taken.seq):
            await store.prune(jobs[steps * 50 : steps * 50 + 50], SOON_S)
            await store.append([submitted(f"later{steps}")])
            steps += 1
    assert steps > 1
    await store.close()


async def test_a_repair_leaves_no_snapshot_of_what_was(tmp_path: Path) -> None:
    from corral.controller.recovery.repair import repair

    folder = tmp_path / "journal"
    await filled(folder)
    damage(folder, "UPDATE journal SET at = at + 1 WHERE seq = 3")
    assert repair(tmp_path, yes=True).changed
    assert not (folder / snapshot.NAME).exists()
    store = open_store(folder)
    assert not store.snapshots.unproven
    await store.close()


async def test_a_snapshot_beside_another_database(tmp_path: Path) -> None:
    """Somebody puts back an older copy of the files and leaves the snapshot."""
    old, new = tmp_path / "old", tmp_path / "new"
    store = open_store(new)
    await store.append([submitted("a")])
    await store.close()
    shutil.copytree(new, old)
    store = open_store(new)
    await store.append([submitted("b")])
    await take(store)
    await store.close()
    for name in ("corral.db", "mark"):
        shutil.copyfile(old / name, new / name)
    for log in new.glob("corral.db-*"):
        log.unlink()
    with contextlib.closing(sqlite3.connect(new / "corral.db")) as connection:
        assert connection.execute("SELECT max(seq) FROM journal").fetchone() == (1,)
    store = open_store(new)
    assert set(store.world.heads) == {"a"}
    await store.close()


@pytest.mark.parametrize("count", [0, 1, 15, 16, JOBS_AT_ONCE + 1, 2 * JOBS_AT_ONCE + 16])
def test_what_is_written_in_pieces_is_read_as_a_whole(tmp_path: Path, count: int) -> None:
    last = JournalRecord(7, 1.0, "kind", "job", 0, b"", None, crc=11)
    shape = Shape(Needs())
    heads = [Head(f"job{n}", shape, State.QUEUED, 0.0, n, n * 100) for n in range(count)]
    snapshot.write(tmp_path, snapshot.encoded(last, heads))
    living = {head.id: head.last_seq for head in heads}
    assert snapshot.read(tmp_path) == JournalSnapshot(7, last.crc, living)
