"""Who may be a worker: enrolled with an invitation, known by a credential, cut off for good."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from corral.controller.auth.roster import Roster
from corral.core.errors import Conflict, HomeUnusable, InvalidRequest, Unauthorized, WorkerNotFound
from corral.core.worker import Wishes


def opened(path: Path) -> Roster:
    return Roster(path / "workers.json", local_id="w-here", local_credential="c")


async def invited(roster: Roster) -> str:
    token, _ = await roster.invite()
    return token


async def test_an_invitation_turns_into_a_credential_of_ones_own(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    first, credential = await roster.admit("gaming", (), token=await invited(roster))
    second, other = await roster.admit("gaming", ("vm",), token=await invited(roster))
    assert (first.name, second.name) == ("gaming", "gaming-2")
    again = opened(tmp_path)
    assert again.is_worker(first.id, credential)
    assert not again.is_worker(first.id, other)
    assert not again.is_worker(first.id, await invited(roster))
    assert not again.is_worker("w-here", credential)
    assert again.is_worker("w-here", "c")
    kept = (tmp_path / "workers.json").read_text()
    assert credential not in kept
    assert (tmp_path / "workers.json").stat().st_mode & 0o77 == 0


async def test_who_looks_elsewhere_is_known_until_it_found_us(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    roster.url = "https://10.0.0.1:8700"
    worker, _ = await roster.admit("gaming", (), token=await invited(roster))
    assert roster.told_elsewhere() == []
    again = opened(tmp_path)
    again.url = "https://10.0.0.1:9000"
    assert [one.told for one in again.told_elsewhere()] == ["https://10.0.0.1:8700"]
    await again.reached([worker.id, "w-here", "w-nobody"])
    later = opened(tmp_path)
    later.url = "https://10.0.0.1:9000"
    assert later.told_elsewhere() == []


async def test_a_renewed_invitation_voids_those_before(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    before = await invited(roster)
    after, _ = await roster.invite(renew=True)
    with pytest.raises(Unauthorized, match="corral invite"):
        await roster.admit("late", (), token=before)
    assert (await roster.admit("new", (), token=after))[0].name == "new"


async def test_an_invitation_ends(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    token, _ = await roster.invite(1e-6)
    for one in (roster, opened(tmp_path)):
        with pytest.raises(Unauthorized, match=r"good until .* UTC.*corral invite"):
            await one.admit("late", (), token=token)
    _, issued = await roster.invite()
    assert 86_000 < issued.expires_at - time.time() <= 86_400, "a day, where nothing else is said"
    for odd in (0.0, -1.0, 1e12, float("nan")):
        with pytest.raises(InvalidRequest):
            await roster.invite(odd)


async def test_of_two_at_once_one_has_the_last_use(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    token, _ = await roster.invite(uses=2)
    asking = [roster.admit("one", (), token=token) for _ in range(5)]
    told = await asyncio.gather(*asking, return_exceptions=True)
    refused = [one for one in told if isinstance(one, Unauthorized)]
    assert len(refused) == 3
    assert "As many machines have joined" in str(refused[0])
    again = opened(tmp_path)  # what was used is used, also after kill -9
    with pytest.raises(Unauthorized, match=r"As many machines.*corral invite"):
        again.check_invited(token)
    for odd in (0, -1, 10_001):
        with pytest.raises(InvalidRequest):
            await roster.invite(uses=odd)


async def test_invitations_do_not_pile_up(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    many = {"sha256": "", "expires_at": time.time() + 100, "uses": None}
    kept = [{**many, "sha256": f"{n:064x}"} for n in range(1_000)]
    file.write_text(json.dumps({"invitations": kept}))
    with pytest.raises(Conflict, match="--renew"):
        await opened(tmp_path).invite()
    old = [{**one, "expires_at": time.time() - 8 * 86_400} for one in kept]
    file.write_text(json.dumps({"invitations": old}))
    await opened(tmp_path).invite()
    assert len(json.loads(file.read_text())["invitations"]) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", "worker"),
        ("auto", "auto-2"),
        ("my pc", "my-pc"),
        ("../..", "worker"),
        ("ä" * 99, "worker"),
    ],
)
async def test_a_name_is_made_usable(tmp_path: Path, given: str, kept: str) -> None:
    roster = opened(tmp_path)
    enrolled, _ = await roster.admit(given, (), token=await invited(roster))
    assert enrolled.name == kept


async def test_wishes_outlive_a_restart(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    worker, _ = await roster.admit("a", (), token=await invited(roster))
    await roster.change(worker.id, "a", name="big", draining=True, labels=["ssd", "ssd"])
    await roster.change("w-here", "vm", labels=["here"])
    again = opened(tmp_path)
    assert again.wishes(worker.id) == Wishes("big", True, ("ssd",))
    assert again.wishes("w-here") == Wishes("vm", False, ("here",))
    assert again.is_worker("w-here", "c")


async def test_what_cannot_be_wished(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    one, _ = await roster.admit("one", (), token=await invited(roster))
    await roster.admit("two", (), token=await invited(roster))
    with pytest.raises(Conflict):
        await roster.change(one.id, "one", name="two")
    for name in ("auto", "local", "", "a b", "x" * 64):
        with pytest.raises(InvalidRequest):
            await roster.change(one.id, "one", name=name)
    for labels in ([""], ["x" * 101], ["a\nb"], [str(n) for n in range(65)]):
        with pytest.raises(InvalidRequest):
            await roster.change(one.id, "one", labels=labels)
    with pytest.raises(WorkerNotFound):
        await roster.change("w-nobody", "x", draining=True)


async def test_a_revoked_credential_is_good_for_nothing(tmp_path: Path) -> None:
    roster = opened(tmp_path)
    worker, credential = await roster.admit("a", (), token=await invited(roster))
    await roster.revoke(worker.id)
    assert not roster.is_worker(worker.id, credential)
    assert not opened(tmp_path).knows(worker.id)
    with pytest.raises(WorkerNotFound):
        await roster.revoke(worker.id)
    with pytest.raises(Conflict, match=r"corral\.yaml"):
        await roster.revoke("w-here")


def test_a_damaged_roster_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "workers.json").write_text("{")
    with pytest.raises(HomeUnusable, match="join again"):
        opened(tmp_path)
