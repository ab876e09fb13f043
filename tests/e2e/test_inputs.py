"""Input files, end to end: put, named by a job, found in its work directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import corral
from corral.core.errors import AssetNotFound
from tests.live import LiveController


def read(name: str) -> bytes:
    return Path(name).read_bytes()


def test_an_asset_is_a_file_in_the_work_directory(client: corral.Client, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "numbers.bin").write_bytes(data)
    asset = client.put(tmp_path / "numbers.bin")
    assert asset == corral.Asset(hashlib.sha256(data).hexdigest(), len(data), "numbers.bin")
    inputs = {"data.bin": asset, "deep/er/data.bin": asset}
    assert client.run(read, ("data.bin",), inputs=inputs) == data
    assert client.run(read, ("deep/er/data.bin",), inputs=inputs) == data


def test_what_is_there_is_not_sent_again(
    client: corral.Client, controller: LiveController, tmp_path: Path
) -> None:
    (tmp_path / "once").write_bytes(os.urandom(100_000))
    asset = client.put(tmp_path / "once")
    blob = controller.home / "blobs" / asset.sha256[:2] / asset.sha256
    before = blob.stat()
    assert client.put(tmp_path / "once") == asset
    assert blob.stat().st_ino == before.st_ino


def test_a_job_cannot_change_what_others_read(client: corral.Client, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"as it was")
    asset = client.put(tmp_path / "kept")

    def spoil() -> list[str]:
        def in_place() -> None:
            with open("kept", "r+b") as file:
                file.write(b"x")

        said = []
        for what in (
            in_place,
            lambda: Path("kept").write_bytes(b"worse"),
            lambda: os.truncate("kept", 1),
            lambda: os.unlink(os.path.realpath("kept")),
            lambda: os.listdir(os.path.dirname(os.path.realpath("kept"))),
        ):
            try:
                os.chmod("kept", 0o666)
                what()
            except OSError as error:
                said.append(type(error).__name__)
        return said

    spoiled = client.run(spoil, inputs={"kept": asset})
    assert len(spoiled) == 5, spoiled
    assert client.run(read, ("kept",), inputs={"kept": asset}) == b"as it was"


def test_the_next_job_finds_nothing_of_it(client: corral.Client, tmp_path: Path) -> None:
    (tmp_path / "gone").write_bytes(b"1")
    asset = client.put(tmp_path / "gone")
    assert client.run(os.listdir, inputs={"gone": asset}) == ["gone"]
    assert client.run(os.listdir) == []


def test_a_script_and_a_map_have_inputs_too(
    client: corral.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.txt").write_text("six times seven")
    (tmp_path / "main.py").write_text("print(open('in/data.txt').read())")
    asset = client.put(tmp_path / "data.txt")
    client.run_script(tmp_path / "main.py", inputs={"in/data.txt": asset})
    assert capsys.readouterr().out == "six times seven\n"
    found = list(client.map(read, ["data.txt"] * 20, inputs={"data.txt": asset}))
    assert found == [b"six times seven"] * 20


async def test_the_asynchronous_client_puts_too(controller: LiveController, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"there")
    async with corral.AsyncClient(controller.address, controller.token) as client:
        asset = await client.put(tmp_path / "data")
        assert await client.run(read, ("data",), inputs={"data": asset}) == b"there"


def test_an_unknown_asset_is_refused(client: corral.Client) -> None:
    asset = corral.Asset("0" * 64, 1, "nowhere")
    with pytest.raises(AssetNotFound, match="not stored here"):
        client.submit(read, ("x",), inputs={"x": asset})


@pytest.mark.parametrize(
    "names",
    [("../x",), ("/etc/x",), ("a\\b",), ("c:x",), ("",), ("a//b",), ("nul.txt",), ("a", "a/b"),
     ("A", "a"), ("end.",), ("line\nbreak",)],
)  # fmt: skip
def test_names_that_are_refused(client: corral.Client, names: tuple[str, ...]) -> None:
    asset = corral.Asset("0" * 64, 1, "x")
    with pytest.raises(corral.InvalidJob, match="input"):
        client.submit(read, ("x",), inputs=dict.fromkeys(names, asset))


def test_an_input_is_not_in_the_way_of_the_package(client: corral.Client, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    asset = client.put(tmp_path / "main.py")
    with pytest.raises(corral.InvalidJob, match="each other's way"):
        client.run_script(tmp_path / "main.py", inputs={"main.py": asset})
