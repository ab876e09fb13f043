"""What a caller may ask for, the sentence for what not, and where the controller is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from corral.contract import corral_pb2 as pb
from corral.contract import service
from corral.core.errors import InvalidJob, InvalidSettings
from corral.core.job import QueueClass
from corral.sdk.submit import outgoing, requirements, submission
from corral.sdk.transport.connection import Door, locate


def build(**options: Any) -> pb.JobSubmission:
    return submission.build(options, queue_class=QueueClass.BATCH, name="job")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0, 0.0)),
        ({"gpus": 2}, (2, 0.0)),
        ({"gpu_memory": 2}, (2, 0.0)),
        ({"gpu_memory": 1}, (0, 1.0)),
        ({"gpu_memory": 0.7}, (0, 0.7)),
        ({"vram_gb": 12}, (1, 0.0)),
        ({"gpu_memory": 0.5, "vram_gb": 12}, (0, 0.5)),
        ({"gpu": "RTX 4090"}, (1, 0.0)),
        ({"gpu": "RTX 4090", "gpus": 2}, (2, 0.0)),
        ({"gpu": "RTX 4090", "gpu_memory": 0.5}, (0, 0.5)),
    ],
)
def test_gpu_amounts(options: dict[str, Any], expected: tuple[int, float]) -> None:
    message = build(**options)
    assert (message.gpus, round(message.gpu_memory, 6)) == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": 1.5}, "gpus is a whole number"),
        ({"gpus": -1}, "gpus is at least 0"),
        ({"gpus": True}, "gpus is a number"),
        ({"gpus": 1, "gpu_memory": 0.5}, "not both"),
        ({"gpu": 2}, "how many is gpus"),
        ({"gpu": "--"}, "a GPU's name such as"),
        ({"gpu_memory": 0.25}, "in tenths"),
        ({"gpu_memory": 2.5}, "in tenths"),
        ({"gpu_memory": float("nan")}, "gpu_memory is a number"),
        ({"duration": 0}, "duration is at least 1"),
        ({"duration": 604_801}, "at most 604800"),
        ({"cpus": 0}, "cpus is at least 0.1"),
        ({"priority": 101}, "priority is at least -100 and at most 100"),
        ({"retries": -1}, "retries"),
        ({"queue_class": "fast"}, "'interactive' or 'batch'"),
        ({"env": ["A=1"]}, "env is a mapping"),
        ({"env": {"A": 1}}, r"env\['A'\] is a text"),
        ({"env": {"A=B": "1"}}, "no name"),
        ({"worker_labels": [1]}, "worker label"),
        ({"models": 3}, "models is a list of names"),
        ({"models": ["sdxl", ""]}, "models holds names such as 'sdxl_1.0'; got ''"),
        ({"name": 3}, "name is a text"),
        ({"requirements": [""]}, "requirement"),
    ],
)
def test_refusals(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidJob, match=sentence):
        build(**options)


def test_labels_of_workers() -> None:
    assert list(build(worker_labels="ssd").worker_labels) == ["ssd"]
    assert list(build(worker_labels={"room": "attic"}).worker_labels) == ["room=attic"]


def test_models_by_name() -> None:
    assert list(build(models="sdxl").models) == ["sdxl"]
    assert list(build(models=("sdxl", "vae")).models) == ["sdxl", "vae"]


def test_requirements_file(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "deep.txt").write_text("scipy\n-r ../last.txt\n")
    (tmp_path / "last.txt").write_text("torch==2.4 # pinned\n")
    (tmp_path / "requirements.txt").write_text(
        "# all we need\n\nnumpy>=2, \\\n  <3\n--requirement more/deep.txt\n"
        'pip-name[extra]; python_version < "4"\nx @ https://example.org/x.whl#sha256=ab\n'
    )
    assert requirements.resolve(tmp_path / "requirements.txt") == [
        "numpy>=2,    <3",
        "scipy",
        "torch==2.4",
        'pip-name[extra]; python_version < "4"',
        "x @ https://example.org/x.whl#sha256=ab",
    ]
    assert requirements.resolve(["numpy", " scipy "]) == ["numpy", "scipy"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("--index-url https://example.org", r"r.txt:1: the installer option --index-url"),
        ("numpy\n-e .", r"r.txt:2: the installer option -e"),
        ("numpy --hash=sha256:ab", "--hash"),
        ("./wheel.whl", "a path on this machine"),
        ("-r r.txt", "includes itself"),
        ("-r gone.txt", "There is no requirements file"),
    ],
)
def test_requirements_that_cannot_travel(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "r.txt").write_text(text)
    with pytest.raises(InvalidJob, match=sentence):
        requirements.resolve(tmp_path / "r.txt")


def test_a_lone_requirement_is_a_list() -> None:
    with pytest.raises(InvalidJob, match=r"requirements=\['numpy'\]"):
        requirements.resolve("numpy")


def test_where_the_controller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORRAL_ADDRESS", "CORRAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    assert locate() == Door("127.0.0.1:50051", "", tmp_path)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "controller.json").write_text(json.dumps({"grpc": "127.0.0.1:7"}))
    assert locate() == Door("127.0.0.1:7", "secret", tmp_path)
    (tmp_path / "certificate.pem").write_text("pem")
    card = {"grpc": "10.0.0.1:7", "certificate": str(tmp_path / "certificate.pem")}
    (tmp_path / "controller.json").write_text(json.dumps(card))
    assert locate() == Door("10.0.0.1:7", "secret", tmp_path, "pem")  # ours, by its certificate
    assert locate("127.0.0.1:7") == Door("127.0.0.1:7", "secret", tmp_path)
    assert locate(home=str(tmp_path)) == locate(home=tmp_path), "a home is a path, however it comes"
    login = {"address": "10.0.0.2:7", "token": "mine", "certificate": "theirs"}
    (tmp_path / "login.json").write_text(json.dumps(login))
    assert locate() == Door("10.0.0.2:7", "mine", tmp_path, "theirs")
    assert locate("10.0.0.1:7").token == "secret"
    (tmp_path / "login.json").unlink()
    monkeypatch.setenv("CORRAL_ADDRESS", "far.example:9")
    assert locate()[:2] == ("far.example:9", "")  # the home's token stays at home
    monkeypatch.setenv("CORRAL_TOKEN", "other")
    assert locate()[:2] == ("far.example:9", "other")
    assert locate("localhost:1", "mine")[:2] == ("localhost:1", "mine")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8700", "127.0.0.1", "localhost:grpc"])
def test_what_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_ADDRESS", address)
    with pytest.raises(InvalidSettings, match="HOST:PORT of its gRPC door"):
        locate()


def test_far_guesses_are_not_made() -> None:
    with pytest.raises(TypeError, match=r"there is no job option 'reqs'\.$"):
        build(reqs=[])
    with pytest.raises(TypeError, match="Did you mean 'requirements'"):
        build(requirement=[])


def test_words_of_others_are_known() -> None:
    for word, ours in {"timeout": "duration", "num_gpus": "gpus", "pip": "requirements"}.items():
        with pytest.raises(TypeError, match=rf"there is no job option '{word}'.*mean '{ours}'\?"):
            build(**{word: 1})


def test_a_script_may_need_another_python_and_a_function_cannot(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    options: submission.Options = {"python": "3.99"}
    sent = outgoing.script_job(tmp_path, (), None, options, QueueClass.BATCH)
    assert sent.request(0.0).jobs[0].python == "3.99"
    with pytest.raises(InvalidJob, match=r"not on 3\.99. Call it from Python 3\.99"):
        outgoing.function_job(len, ("a",), None, options, QueueClass.BATCH)
    same: submission.Options = {"python": submission.PYTHON}
    outgoing.function_job(len, ("a",), None, same, QueueClass.BATCH)


def test_a_duration_may_be_a_text() -> None:
    assert build(duration="90m").duration == 5400
    assert build(duration="2d").duration == 172_800
    with pytest.raises(InvalidJob, match="duration is a number of seconds, or 90s, 30m"):
        build(duration="an hour")
    with pytest.raises(InvalidJob, match="duration is at least 1"):
        build(duration="0")


def test_arguments_are_tuples() -> None:
    assert submission.arguments([1, 2], None) == ((1, 2), {})
    with pytest.raises(TypeError, match=r"args is a tuple: write args=\(5,\)"):
        submission.arguments(5, None)
    with pytest.raises(TypeError, match=r"args=\('abc',\)"):
        submission.arguments("abc", None)
    with pytest.raises(TypeError, match="kwargs is a dictionary"):
        submission.arguments((), [("a", 1)])


async def test_the_table_of_methods() -> None:
    assert service.SERVICE == "corral.v1.Orchestrator"
    with pytest.raises(AttributeError, match="SubmitJob"):
        service.handler(object())
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        stub = service.stub(channel)
        assert all(hasattr(stub, method) for method in service.METHODS)
