"""Damage to the journal: torn, flipped, deleted. A start is complete, or it refuses and names the
first lost record; it never has silently less. Then `corral repair` goes on knowingly."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.journal.record import UNREADABLE
from corral.controller.recovery.proof_process import prove
from corral.controller.recovery.repair import repair
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.errors import CorralError, HomeUnusable, JournalDamaged
from corral.core.events import AttemptPlaced, JobSubmitted
from corral.core.job import Needs
from tests.crash import books, scenario
from tests.crash.books import end_of, records, stories

pytestmark = [pytest.mark.crash, pytest.mark.long]

WAL, DATABASE, MARK = "corral.db-wal", "corral.db", "mark"
FLIPS = 500
REPAIRS = 12


class Homes:
    """The same journal as a crash leaves it (`hot`: all in the log) and after a clean stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hot, self.clean = folder / "hot", folder / "clean"
        self.unmarked = folder / "unmarked"
        """As killed between a commit and the mark that promises it."""
        scenario.quiet()
        asyncio.run(self._make())
        self.whole = state(self.clean)
        self.snapped = folder / "snapped"
        """The clean one with a snapshot, and records behind it."""
        asyncio.run(self._snap())
        self._copies = 0

    async def _make(self) -> None:
        home = self.folder / "made"
        async with scenario.station(home) as life:
            await life.submit(scenario.function_job("waiting", needs=Needs(gpus=1)))
            for n in range(12):
                await life.submit(scenario.function_job(f"done-{n}", batch="herd"))
            waiting = list(life.store.world.heads)[:1]
            await life.until_ended(but=waiting)
            ended = [row.job for row in books.history(life.journal)]
            await life.store.prune(ended[3:9:2], 10.0)
            assert len(life.journal.pruned()) > 1
            mark = (home / "journal" / MARK).read_bytes()
            before = life.journal.last_seq()
            await life.submit(scenario.function_job("last", needs=Needs(gpus=1)))
            assert life.journal.last_seq() == before + 1
            shutil.copytree(home, self.hot)
        shutil.copytree(home, self.clean)
        shutil.copytree(self.hot, self.unmarked)
        (self.unmarked / "journal" / MARK).write_bytes(mark)

    async def _snap(self) -> None:
        shutil.copytree(self.clean, self.snapped)
        async with scenario.station(self.snapped) as life:
            last = life.journal.record(life.store.seq)
            life.store.snapshots.take(last, life.store.world.heads.values())
            await life.submit(scenario.function_job("behind", needs=Needs(gpus=1)))

    def copy(self, of: Path) -> Path:
        self._copies += 1
        copied = self.folder / f"copy{self._copies}"
        shutil.copytree(of, copied)
        for shared in copied.glob("journal/*-shm"):
            shared.unlink()
        return copied


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Homes:
    return Homes(tmp_path_factory.mktemp("damage"))


def state(home: Path) -> dict[str, Any]:
    """Everything a start knows, asked for on every way that there is. Raises what a start would."""
    journal = Journal(home / "journal")
    with contextlib.closing(journal):
        store = Store(journal, World())
        store.recover()
        found = list(journal.scan())
        jobs = sorted({record.job for record in found if record.job})
        heads = {job: store.head(job) for job in jobs}
        return {
            "records": found,
            "pruned": journal.pruned(),
            "living": dict(store.world.heads),
            "heads": heads,
            "documents": [journal.document(head.submitted_seq) for head in heads.values()],
            "chains": [list(journal.backwards(head.last_seq)) for head in heads.values()],
            "keys": [
                store.world.keys.get(head.key) or journal.ended_by_keys([head.key]).get(head.key)
                for head in heads.values()
            ],
            "prefixes": [journal.ended_by_prefix(job) for job in jobs],
            "batch": journal.ended_in_batch("herd", 0, 100),
            "history": books.history(journal),
            "newest": journal.ended_newest(),
            "last": found[-1].seq,
        }


def files(home: Path) -> dict[str, bytes]:
    """The journal's bytes; an empty log and shared memory mean nothing."""
    found = {path.name: path.read_bytes() for path in (home / "journal").iterdir()}
    return {name: data for name, data in found.items() if data and not name.endswith("-shm")}


def refusal(home: Path) -> CorralError | None:
    """None where the start is complete, or what it refuses with. It touches nothing then."""
    before = files(home)
    try:
        state(home)
    except (JournalDamaged, HomeUnusable) as error:
        if before.get(MARK):
            assert files(home) == before, "a refused start changed something"
        return error
    return None


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def survivors(home: Path) -> int:
    """The last record that SQLite itself still has."""
    try:
        found = [record.seq for record in records(home) if record.intact()]
    except UNREADABLE:
        return 0
    return max(found, default=0)


def test_intact_copies_start(homes: Homes) -> None:
    for home in (homes.hot, homes.clean, homes.unmarked):
        assert state(homes.copy(home)) == homes.whole


def test_torn_tail_of_acknowledged_records(homes: Homes) -> None:
    size = (homes.hot / "journal" / WAL).stat().st_size
    for cut in range(size - 1, 0, -size // 40):
        home = homes.copy(homes.hot)
        with (home / "journal" / WAL).open("r+b") as file:
            file.truncate(cut)
        refused = refusal(home)
        assert refused is not None, f"cut at {cut}: started with less"
        assert refused.details["first_lost"] == survivors(home) + 1
        assert f"record {survivors(home) + 1}" in refused.message
        shutil.rmtree(home)


def test_torn_tail_of_unacknowledged_records(homes: Homes) -> None:
    size = (homes.unmarked / "journal" / WAL).stat().st_size
    home = homes.copy(homes.unmarked)
    with (home / "journal" / WAL).open("r+b") as file:
        file.truncate(size - 600)
    found = state(home)
    assert found["records"] == homes.whole["records"][:-1], "only what nobody was told is gone"
    assert found["last"] == homes.whole["last"] - 1


@pytest.mark.long
@pytest.mark.parametrize("name", [WAL, DATABASE, MARK])
def test_flipped_bit(homes: Homes, name: str, covered: Callable[[str], None]) -> None:
    source = homes.hot if name == WAL else homes.clean
    target = source / "journal" / name
    size = target.stat().st_size
    dice = random.Random(name)
    home = homes.copy(source)
    pristine = files(home)
    refused = 0
    # The first bytes of a file mean most: all of them. Then everywhere.
    positions = [*range(min(size, 128)), *(dice.randrange(size) for _ in range(FLIPS))]
    for position in positions:
        for path in (home / "journal").iterdir():
            path.unlink()
        for kept, data in pristine.items():
            (home / "journal" / kept).write_bytes(data)
        bit = dice.randrange(8)
        flip(home / "journal" / name, position, bit)
        where = f"{name}, byte {position}, bit {bit}"
        before = files(home)
        try:
            found = state(home)
        except (JournalDamaged, HomeUnusable):
            refused += 1
            assert files(home) == before, f"{where}: a refused start changed something"
        else:
            assert found == homes.whole, f"{where}: silently different"
    assert name == MARK or refused > len(positions) // 10
    covered(f"{len(positions)} flipped bits in {name}: {refused} starts refused, the rest complete")


@pytest.mark.long
@pytest.mark.parametrize("name", [DATABASE, snapshot.NAME])
def test_flipped_bit_beside_a_snapshot(
    homes: Homes, name: str, covered: Callable[[str], None]
) -> None:
    """What a start from a snapshot does not see, the proof of the past does; and what lives is
    right in any case."""
    home = homes.copy(homes.snapped)
    pristine, folder = files(home), home / "journal"
    size, dice = len(pristine[name]), random.Random(name)
    whole = _without_snapshot(homes, homes.snapped)
    refused = found_later = 0
    # All of the snapshot is under one seal.
    first, more = (128, FLIPS // 2) if name == DATABASE else (32, 32)
    positions = [*range(min(size, first)), *(dice.randrange(size) for _ in range(more))]
    for position in positions:
        for path in folder.iterdir():
            path.unlink()
        for kept, data in pristine.items():
            (folder / kept).write_bytes(data)
        bit = dice.randrange(8)
        flip(folder / name, position, bit)
        where = f"{name}, byte {position}, bit {bit}"
        before = files(home)
        try:
            with contextlib.closing(Journal(folder)) as journal:
                store = Store(journal, World())
                store.recover()
                assert store.world.heads == whole["living"], f"{where}: silently different"
                assert (store.snapshots.unproven > 0) == (name == DATABASE)
                try:
                    for _ in prove(journal, store.snapshots.unproven or store.seq):
                        pass
                except JournalDamaged:
                    found_later += 1
                    store.snapshots.damaged("It is damaged.")
                    assert refusal(home) is not None, f"{where}: it starts again"
                else:
                    assert _without_snapshot(homes, home) == whole, f"{where}: nobody noticed"
        except (JournalDamaged, HomeUnusable):
            refused += 1
            assert files(home) == before, f"{where}: a refused start changed something"
    assert name != DATABASE or (refused and found_later)
    assert name == DATABASE or refused == found_later == 0
    covered(
        f"{len(positions)} flipped bits in {name} beside a snapshot: {refused} starts refused, "
        f"{found_later} found while it works, the rest complete"
    )


def _without_snapshot(homes: Homes, home: Path) -> dict[str, Any]:
    """What the whole journal says."""
    copied = homes.copy(home)
    (copied / "journal" / snapshot.NAME).unlink(missing_ok=True)
    try:
        return state(copied)
    finally:
        shutil.rmtree(copied)


def drop_mark(home: Path) -> None:
    (home / "journal" / MARK).unlink()


def drop_database(home: Path) -> None:
    (home / "journal" / DATABASE).unlink()


def drop_log(home: Path) -> None:
    (home / "journal" / WAL).unlink()


def empty_database(home: Path) -> None:
    (home / "journal" / DATABASE).write_bytes(b"")


def forget_history(home: Path) -> None:
    with contextlib.closing(sqlite3.connect(home / "journal" / DATABASE)) as connection:
        connection.execute("DELETE FROM history WHERE state = 'succeeded'")
        connection.commit()


@pytest.mark.parametrize("damage", [drop_mark, drop_database, drop_log, empty_database])
def test_deleted(homes: Homes, damage: Callable[[Path], None]) -> None:
    home = homes.copy(homes.hot)
    damage(home)
    assert isinstance(refusal(home), JournalDamaged)
    assert isinstance(refusal(home), JournalDamaged), "and again: nothing was made up meanwhile"
    check_repair(homes, home)


def test_index_that_forgot(homes: Homes) -> None:
    home = homes.copy(homes.clean)
    forget_history(home)
    refused = refusal(home)
    assert refused is not None
    assert "no job is lost" in refused.message
    check_repair(homes, home)
    assert {record.job for record in homes.whole["records"]} <= set(stories(home))


@pytest.mark.parametrize("name", [WAL, DATABASE])
def test_repair_after_flipped_bits(homes: Homes, name: str, covered: Callable[[str], None]) -> None:
    dice = random.Random(f"repair {name}")
    repaired = saved = 0
    while repaired < REPAIRS:
        home = homes.copy(homes.hot if name == WAL else homes.clean)
        target = home / "journal" / name
        flip(target, dice.randrange(100, target.stat().st_size), dice.randrange(8))
        if isinstance(refusal(home), JournalDamaged):
            check_repair(homes, home)
            repaired += 1
            saved += {record.job for record in homes.whole["records"]} <= set(stories(home))
        shutil.rmtree(home)
    # A bit of the log damages one version of one page, and most pages have a newer one.
    assert name == DATABASE or saved >= repaired * 2 // 3
    covered(f"{repaired} repairs after flipped bits in {name}, {saved} of them without any loss")


def check_repair(homes: Homes, home: Path) -> None:
    intact = {}
    with contextlib.suppress(*UNREADABLE):
        intact = {record.seq: record for record in records(home) if record.intact()}
    before = files(home)
    looked = repair(home, yes=False)
    assert not looked.changed
    assert files(home) == before, "looking changes nothing"
    report = repair(home, yes=True)
    assert report.changed
    assert any("intact" in line and "lost" in line for line in report.lines), report.lines
    [kept] = home.glob("journal.damaged-*")
    assert {
        path.name: path.read_bytes() for path in kept.iterdir() if path.name in before
    } == before
    assert repair(home, yes=True).lines == ["The journal is whole. Nothing to repair."]
    check_repaired(homes, home, {record.job for record in intact.values() if _submits(record)})


def _submits(record: Any) -> bool:
    return record.job != "" and isinstance(record.fact(), JobSubmitted)


def check_repaired(homes: Homes, home: Path, known: set[str]) -> None:
    """The next life works, keeps what was intact, and uses no number twice."""
    whole = homes.whole["records"]
    numbers = {record.seq for record in whole}
    fresh = records(home)
    assert not numbers & {record.seq for record in fresh}, "numbers are not used again"
    assert known <= {record.job for record in fresh}
    highest = {
        record.job: record.fact().attempt
        for record in whole
        if record.kind == AttemptPlaced.__name__
    }
    asyncio.run(_live_on(home))
    for job, story in stories(home).items():
        assert end_of(story) is not None
        for number, fact in story:
            if isinstance(fact, AttemptPlaced) and number > fresh[-1].seq:
                assert fact.attempt > highest.get(job, 0)


async def _live_on(home: Path) -> None:
    async with scenario.station(home) as life:
        await life.submit(scenario.function_job("after repair"))
        heads = life.store.world.heads.values()
        waiting = [head.id for head in heads if head.shape.needs.wants_gpu]
        await life.until_ended(but=waiting)
        for job in waiting:
            await life.cancel(job)
