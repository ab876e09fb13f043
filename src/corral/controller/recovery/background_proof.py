"""What a start from a snapshot left out: the past is proven, and keys of ended jobs are read."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time

import msgspec
import structlog

from corral.controller.history.ended import UsedKeys
from corral.controller.journal.database import Journal
from corral.controller.journal.record import UNREADABLE
from corral.controller.recovery.proof_process import ProofReport
from corral.controller.recovery.start import read_keys
from corral.controller.store import Store
from corral.core.errors import CorralError

log = structlog.get_logger()

AGAIN_S = 600.0
"""How long after a proof that was cut off another is tried."""
if sys.platform == "win32":
    _FLAGS = subprocess.BELOW_NORMAL_PRIORITY_CLASS
else:
    _FLAGS = 0
_decode = msgspec.json.Decoder(ProofReport).decode


class BackgroundProof:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        """Until it is known whether the journal is whole, and then for ever."""
        if self._store.snapshots.unproven:
            await self._read_keys()
            known = await self._prove()
            while not known:
                await asyncio.sleep(AGAIN_S)
                known = await self._prove()
        await asyncio.Event().wait()  # like others, this task ends with the controller

    async def _read_keys(self) -> None:
        """Until this is done, the disk is asked about every key."""
        try:
            await self._store.know_keys(await asyncio.to_thread(self._keys))
        except (CorralError, OSError, *UNREADABLE) as error:
            log.warning("keys_not_read", error=str(error))  # the disk is asked as before

    def _keys(self) -> UsedKeys:
        with contextlib.closing(Journal(self._store.journal.folder)) as journal:
            return read_keys(journal, pause_s=0.001)

    async def _prove(self) -> bool:
        """Whether there is a verdict."""
        snapshots, began = self._store.snapshots, time.monotonic()
        try:
            word = await self._verdict()
        except OSError as error:  # no room for another process, or no descriptors
            log.warning("journal_proof_not_started", error=str(error))
            return False
        took = round(time.monotonic() - began, 1)
        if not word.done:
            log.warning("journal_proof_cut_off", proven=word.proven, seconds=took)
            return False
        if word.damage:
            snapshots.damaged(word.damage)
            log.error("journal_damaged", error=word.damage)
        else:
            snapshots.unproven = 0
            log.info("journal_proven", records=word.proven, seconds=took)
        return True

    async def _verdict(self) -> ProofReport:
        """The last word of a process that looks."""
        word = ProofReport()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "corral.controller.recovery.proof_process",
            str(self._store.journal.folder),
            str(self._store.snapshots.unproven),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            creationflags=_FLAGS,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                with contextlib.suppress(msgspec.MsgspecError):
                    word = _decode(line)
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return word
