"""What a client is told about bytes that retention removed."""

from __future__ import annotations

from pathlib import Path

import pytest

import corral
from corral.controller.files.blobs import Blobs
from corral.core.errors import ArtifactPruned
from tests.live import LiveController


def large() -> str:
    from pathlib import Path

    from corral import job

    Path("grass.txt").write_bytes(b"g" * 20_000)
    job.artifact("grass.txt")
    return "moo" * 10_000


def test_pruned_bytes_say_so(tmp_path: Path) -> None:
    with LiveController(tmp_path / "home") as controller:
        with corral.Client(controller.address, controller.token) as client:
            job = client.submit(large)
            assert job.result(timeout=60) == "moo" * 10_000
            [artifact] = job.artifacts()
            view = job.status()
            assert view.result is not None
        controller.stop()
        blobs = Blobs(controller.home / "blobs")
        for sha256 in (artifact.file_sha256, view.result.sha256):
            path = blobs.remove(sha256, noted=True)
            assert path is not None
            path.unlink()
        controller.start()
        with corral.Client(controller.address, controller.token) as client:
            again = client.job(job.id)
            assert again.status().state == "succeeded", "the history knows it still"
            with pytest.raises(ArtifactPruned, match="retention"):
                again.result(timeout=60)
            with pytest.raises(ArtifactPruned):
                again.download("grass.txt", tmp_path / "grass.txt")
            assert not (tmp_path / "grass.txt").exists()
