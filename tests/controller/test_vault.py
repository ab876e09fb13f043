"""The vault, and what becomes of a job whose secret is gone when its turn comes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from msgspec import Raw

from corral.controller.auth.vault import Vault
from corral.core.errors import HomeUnusable, SecretNotFound
from corral.core.events import JobFailed
from corral.core.job import Needs
from corral.engines.engine import Attempt
from corral.protocol.messages import JobDispatch
from tests.controller.shell import function_job, records_of, shell

VALUE = "a-value-that-nobody-may-see"


async def test_a_value_is_looked_up_when_the_attempt_is_sent(tmp_path: Path) -> None:
    sent: list[Attempt] = []

    def seconds(attempt: Attempt) -> float:
        sent.append(attempt)
        return 0.0

    async with shell(tmp_path, seconds=seconds) as made:
        await made.vault.set("TOKEN", "an-older-value")
        made.loop.paused = True
        job = await made.submit(secrets=("TOKEN",))
        await made.vault.set("TOKEN", VALUE)
        made.loop.paused = False
        made.loop.wake()
        await made.until_ended(job)
        assert sent[0].secrets == {"TOKEN": VALUE}
        assert VALUE not in repr(sent[0])
        journal = b"".join(path.read_bytes() for path in (tmp_path / "journal").iterdir())
        assert b"TOKEN" in journal
        assert VALUE.encode() not in journal


async def test_a_secret_that_is_gone_by_then_fails_the_job(tmp_path: Path) -> None:
    async with shell(tmp_path) as made:
        await made.vault.set("TOKEN", VALUE)
        made.loop.paused = True
        job = await made.submit(secrets=("TOKEN",), retries=5)
        await made.vault.remove("TOKEN")
        made.loop.paused = False
        made.loop.wake()
        await made.until_ended(job)
        end = records_of(made.store, job)[-1].fact()
        assert isinstance(end, JobFailed)
        assert end.failure.code == "secret_missing"
        assert "corral secret set TOKEN" in end.failure.message
        assert made.facts(job) == ["JobSubmitted", "AttemptPlaced", "JobFailed"]


async def test_a_submission_with_an_unknown_name_leaves_no_trace(tmp_path: Path) -> None:
    async with shell(tmp_path) as made:
        with pytest.raises(SecretNotFound):
            await made.queue.submit([function_job(), function_job(secrets=("TOKEN",))])
        assert not made.store.world.heads


async def test_the_file_is_private_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    vault = Vault(path)
    await vault.set("TOKEN", VALUE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.chmod(path, 0o644)
    again = Vault(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert again.values(["TOKEN"]) == {"TOKEN": VALUE}
    await again.remove("TOKEN")
    assert "TOKEN" not in Vault(path)
    path.write_text('{"version": 1}')
    with pytest.raises(HomeUnusable) as caught:
        Vault(path)
    assert VALUE not in str(caught.value)


def test_dispatches_hide_what_they_carry() -> None:
    dispatch = JobDispatch(
        job="j", attempt=1, document=Raw(b"{}"), digest="", token="t" * 20, needs=Needs(),
        secrets={"TOKEN": VALUE},
    )  # fmt: skip
    assert VALUE not in repr(dispatch)
    assert VALUE not in f"{[dispatch]}"
