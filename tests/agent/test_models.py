"""Models on a worker's disk: found by name, digested beside the work, told when they change."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import pytest

from corral.agent.files.models import ModelFiles
from corral.core.job import Needs
from corral.core.worker import Model
from corral.job import model as model_path
from corral.protocol import messages as wire
from corral.runtime.files.models import model_name, models_in
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    (root / "Stable-diffusion").mkdir(parents=True)
    (root / "Stable-diffusion" / "sdxl_1.0.safetensors").write_bytes(b"weights")
    (root / "Stable-diffusion" / "notes.txt").write_bytes(b"no model")
    hub = root / "models--org--small" / "snapshots" / "abc"
    hub.mkdir(parents=True)
    (hub / "config.json").write_bytes(b"{}")
    (hub / "model.safetensors").write_bytes(b"more")
    (root / "loop").symlink_to(root)
    (root / os.fsdecode(b"no\xff.gguf")).write_bytes(b"a name that is no text")
    return root


def test_names_of_files_and_folders(shelf: Path) -> None:
    assert sorted(one.name for one in models_in(str(shelf))) == ["org/small", "sdxl_1.0"]
    for written in ("sdxl_1.0", "sdxl_1.0.safetensors", "sdxl_1.0.safetensors [31e35c80fc]"):
        assert model_name(written) == "sdxl_1.0"


def test_a_job_finds_its_model(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_MODEL_PATHS", f"/nowhere{os.pathsep}{shelf}")
    assert model_path("sdxl_1.0.safetensors").read_bytes() == b"weights"
    assert (model_path("org/small") / "config.json").exists()
    with pytest.raises(FileNotFoundError, match="no model 'other'"):
        model_path("other")


class Looked:
    def __init__(self, shelf: Path, kept: Path) -> None:
        self.told = asyncio.Event()
        self.files = ModelFiles([str(shelf)], kept, self.told.set)

    async def digest(self, name: str) -> str:
        """After one more look."""
        await self.files.look()
        return next((one.sha256 for one in self.files.models if one.name == name), "")


async def test_digests_are_computed_once_and_anew_where_a_file_changed(
    shelf: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "models.json"
    first = Looked(shelf, kept)
    assert await first.digest("sdxl_1.0") == sha256(b"weights")
    assert Model("sdxl_1.0", 7, sha256(b"weights")) in first.files.models
    listed = f"config.json {sha256(b'{}')}\nmodel.safetensors {sha256(b'more')}\n"
    assert await first.digest("org/small") == sha256(listed.encode())

    file = shelf / "Stable-diffusion" / "sdxl_1.0.safetensors"
    kept.write_text(kept.read_text().replace(sha256(b"weights"), "f" * 64))
    again = Looked(shelf, kept)
    assert await again.digest("sdxl_1.0") == "f" * 64, "unchanged files are not read again"

    file.write_bytes(b"other weights")
    assert await again.digest("sdxl_1.0") == sha256(b"other weights")
    file.unlink()
    assert not await again.digest("sdxl_1.0")
    assert [one.name for one in again.files.models] == ["org/small"]


async def test_names_are_told_before_their_digests(shelf: Path, tmp_path: Path) -> None:
    with (shelf / "Stable-diffusion" / "large.gguf").open("wb") as file:
        file.truncate(1 << 40)  # nobody reads that much while a test runs
    seen = Looked(shelf, tmp_path / "kept.json")
    looking = asyncio.create_task(seen.files.run())
    await asyncio.wait_for(seen.told.wait(), 20)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    assert Model("large", 1 << 40) in seen.files.models


async def test_an_agent_tells_what_it_has_and_what_it_loaded(
    controller: FakeController, start: StartAgent, shelf: Path
) -> None:
    await start(**{"worker.model_paths": [str(shelf)]})
    register = await controller.expect(wire.WorkerRegister)
    assert register.capabilities.model_paths == (str(shelf),)
    assert register.capabilities.output_path.endswith("worker/runs")

    def with_digests(beat: wire.WorkerHeartbeat) -> bool:
        return bool(beat.models) and all(one.sha256 for one in beat.models or ())

    known = {one.name: one.sha256 for one in register.models}
    if not all(known.values()) or not known:
        told = (await controller.expect(wire.WorkerHeartbeat, where=with_digests)).models
        known = {one.name: one.sha256 for one in told or ()}
    assert known["sdxl_1.0"] == sha256(b"weights")

    def read() -> bytes:
        from corral import job

        return job.model("sdxl_1.0").read_bytes()

    dispatch = controller.job(read, needs=Needs(models=("sdxl_1.0",)))
    await controller.send(dispatch)
    assert await controller.value(dispatch.job) == b"weights", "folders of models may be read"
    await controller.expect(
        wire.WorkerHeartbeat, where=lambda beat: beat.models_loaded == ("sdxl_1.0",)
    )
