"""Input files, end to end: put, named by a job, found in its work directory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

import corral
from corral.core.errors import AssetNotFound
from tests.api.rest import Rest
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
    with pytest.raises(PermissionError, match="Inputs are for reading"):
        client.run(lambda: open("kept", "w"), inputs={"kept": asset})  # noqa: SIM115


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


def test_rest_takes_files_and_hands_them_to_jobs(controller: LiveController) -> None:
    rest = Rest(controller)
    data = os.urandom(50_000)
    sha256 = hashlib.sha256(data).hexdigest()
    asked = {"sha256": sha256, "size": len(data)}
    assert not rest("POST", "/assets", asked).json["known"]
    assert rest("PUT", f"/assets?sha256={'0' * 64}", data).code == "invalid_job"
    assert rest("PUT", "/assets", data).json == asked
    assert rest("POST", "/assets", asked).json["known"]
    source = "import hashlib; print(hashlib.sha256(open('in/x', 'rb').read()).hexdigest())"
    body = {"script": {"source": source}, "inputs": {"in/x": {"sha256": sha256}}}
    job = rest("POST", "/jobs", body).json["job_ids"][0]
    rest.ended(job)
    assert rest("GET", f"/jobs/{job}/output").body.decode().strip() == sha256
    for wrong in ({}, {"sha256": "x"}, {"path": "../x"}, {"path": "x"}):
        assert rest("POST", "/assets", wrong).status in (404, 422), wrong
    body["inputs"] = {"x": {"sha256": "0" * 64}}
    assert rest("POST", "/jobs", body).code == "asset_not_found"


def test_an_attempt_fetches_what_its_job_names_and_nothing_else(
    client: corral.Client, tmp_path: Path
) -> None:
    for name in ("mine", "others"):
        (tmp_path / name).write_bytes(os.urandom(1000))
    mine, others = client.put(tmp_path / "mine"), client.put(tmp_path / "others")

    def fetch(*digests: str) -> list[int]:
        import urllib.error
        import urllib.request

        found = []
        for digest in digests:
            place = f"{os.environ['CORRAL_JOB_ID']}/{os.environ['CORRAL_ATTEMPT']}"
            url = f"{os.environ['CORRAL_URL']}/attempts/{place}/assets/{digest}"
            token = {"Authorization": f"Bearer {os.environ['CORRAL_TRANSFER_TOKEN']}"}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, headers=token)) as answer:
                    found.append(answer.status)
            except urllib.error.HTTPError as error:
                found.append(error.code)
                error.close()
        return found

    asked = (mine.sha256, others.sha256)
    assert client.run(fetch, asked, inputs={"mine": mine}) == [200, 403]


@pytest.mark.parametrize("setting", ["ISOLATE=false", "SPAWN=true"])
def test_without_a_sandbox_a_job_has_a_copy_of_its_own(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, setting: str
) -> None:
    (tmp_path / "kept").write_bytes(b"as it was")

    def spoil() -> bytes:
        os.chmod("kept", 0o666)
        Path("kept").write_bytes(b"as I like it")
        return Path("kept").read_bytes()

    name, _, value = setting.partition("=")
    environ = {f"CORRAL_WORKER_{name}": value}
    with (
        LiveController(tmp_path_factory.mktemp("open"), environ=environ) as open_one,
        corral.Client(open_one.address, open_one.token) as client,
    ):
        asset = client.put(tmp_path / "kept")
        assert client.run(spoil, inputs={"kept": asset}) == b"as I like it"
        assert client.run(read, ("kept",), inputs={"kept": asset}) == b"as it was"
        assert client.run(os.listdir) == []


def test_a_damaged_asset_on_the_controller_is_a_named_failure(
    client: corral.Client, controller: LiveController, tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(os.urandom(10_000))
    asset = client.put(tmp_path / "data")
    blob = controller.home / "blobs" / asset.sha256[:2] / asset.sha256
    blob.write_bytes(bytes(10_000))
    with pytest.raises(corral.JobFailed) as failed:
        client.run(read, ("data",), inputs={"data": asset})
    assert failed.value.failure is not None
    assert failed.value.failure.code == "asset_corrupt"
