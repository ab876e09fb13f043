"""Values of secrets reach the job, and nothing that leaves it."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import job
from corral.runtime.channels.redaction import Redactor, StreamRedactor
from tests.runtime.harness import Controller, Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])

VALUE = 'hf_Zq7/Vx+2 "quoted"'
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"
SECRETS = {"HF_TOKEN": VALUE, "SSH_KEY": KEY}


@pytest.fixture
def guarded(start_runner: Callable[..., Runner]) -> Runner:
    return start_runner(secrets=SECRETS)


def clean(runner: Runner, end: object) -> bool:
    """Whether no frame holds a value, not even in pieces of the same stream."""
    told = json.dumps([runner.frames, end]).encode()
    whole = told + runner.output() + runner.output("stderr")
    return all(
        form not in whole
        for form in (VALUE.encode(), json.dumps(VALUE)[1:-1].encode(), b"hkiG9w0BAQEFAASC")
    )


def test_the_job_finds_them_and_its_children_too(guarded: Runner) -> None:
    def look() -> tuple[bool, bool, bool]:
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(len(os.environ['HF_TOKEN']))"],
            capture_output=True,
            text=True,
            check=True,
        )
        return (
            os.environ["HF_TOKEN"] == VALUE,
            os.environ["SSH_KEY"] == KEY,
            int(child.stdout) == len(VALUE),
        )

    assert guarded.value(look) == (True, True, True)
    # They were neither on the command line nor in what the runner was started with.
    for name in ("cmdline", "environ"):
        data = Path(f"/proc/{guarded.process.pid}/{name}").read_bytes()
        assert VALUE.encode() not in data


def test_output_is_redacted_whoever_prints(guarded: Runner) -> None:
    def talk() -> None:
        value = os.environ["HF_TOKEN"]
        print("token", value, "end", flush=True)
        print(os.environ["SSH_KEY"], file=sys.stderr, flush=True)
        os.write(1, b"\xff\xfe" + value.encode() + b"\n")  # no UTF-8: travels as base64
        subprocess.run(["sh", "-c", 'printf "%s" "$HF_TOKEN" >&2'], check=True)
        print(json.dumps({"token": value}), repr(value), base64.b64encode(b"me:" + value.encode()))

    end = guarded.run(talk)
    assert clean(guarded, end)
    assert b"token [HF_TOKEN] end\n" in guarded.output()
    assert b"\xff\xfe[HF_TOKEN]\n" in guarded.output()
    assert guarded.output().count(b"[HF_TOKEN]") == 5
    assert b"[SSH_KEY]\n[SSH_KEY]" in guarded.output("stderr")
    assert guarded.output("stderr").endswith(b"[HF_TOKEN]")


def test_a_value_written_in_two_pieces(guarded: Runner) -> None:
    def talk() -> None:
        import time

        value = os.environ["HF_TOKEN"].encode()
        for stream in (1, 2):
            for cut in (1, len(value) // 2, len(value) - 1):
                os.write(stream, b"<" + value[:cut])
                time.sleep(0.1)  # long enough for the supervisor to have framed the first piece
                os.write(stream, value[cut:] + b">")
        os.write(1, value[:8])  # only a beginning, and then the end

    end = guarded.run(talk)
    assert clean(guarded, end)
    assert guarded.output() == b"<[HF_TOKEN]>" * 3 + VALUE[:8].encode()
    assert guarded.output("stderr") == b"<[HF_TOKEN]>" * 3


def test_the_beginning_of_a_value_is_not_lost_when_the_process_dies(guarded: Runner) -> None:
    def die() -> None:
        os.write(1, b"so far: " + os.environ["HF_TOKEN"][:7].encode())
        os.kill(os.getpid(), 9)

    guarded.run(die)
    assert guarded.output() == b"so far: " + VALUE[:7].encode()


def test_words_of_the_job_are_redacted(guarded: Runner, controller: Controller) -> None:
    def talk() -> None:
        value = os.environ["HF_TOKEN"]
        job.progress(0.5, f"using {value}")
        job.progress(0.6, "x" * (500 - len(value) + 3) + value)  # cut off in the middle of it
        job.metric({value: 1.0})
        with open("plain", "w") as file:
            file.write("x")
        try:
            job.artifact("plain", name=f"{value[:5]}/{value}")
        except ValueError as error:
            print("refused:", error)
        (job.output_dir() / value.replace("/", "_")).write_text("x")  # not the value any more

    end = guarded.run(talk)
    assert clean(guarded, end)
    told = [frame["message"] for frame in guarded.kinds("progress")]
    assert all("hf_Zq7" not in message for message in told)
    assert told[-1].endswith("[HF_TOKEN]")
    assert guarded.kinds("metric")[0]["values"] == {"[HF_TOKEN]": 1.0}
    assert b"refused: An artifact's name holds the value of the secret HF_TOKEN" in guarded.output()
    assert all(VALUE not in name for name in controller.artifacts)


def test_failures_are_redacted(guarded: Runner) -> None:
    class Refused(Exception):
        pass

    def fail(pad: int) -> None:
        try:
            raise ValueError(f"bad token {os.environ['HF_TOKEN']}")
        except ValueError as error:
            raise Refused("y" * pad + os.environ["HF_TOKEN"]) from error

    for pad in (0, 8 * 1024 - 4):  # the second message is cut in the middle of the value
        failure = guarded.failure(fail, pad)
        assert clean(guarded, failure)
        assert "hf_Zq7" not in json.dumps(failure)
        assert failure["type"].endswith("Refused")
        assert "bad token [HF_TOKEN]" in failure["traceback"]
        assert "pickled" not in failure

    def denied() -> None:
        raise PermissionError(13, "no", f"/secret/{os.environ['HF_TOKEN']}")

    assert "hf_Zq7" not in json.dumps(guarded.failure(denied))
    # An exception without a value still travels whole.
    assert "pickled" in guarded.failure(lambda: 1 / 0)


def test_a_result_with_a_value_in_it_is_not_kept(guarded: Runner, controller: Controller) -> None:
    for padding in (0, 20_000):
        failure = guarded.failure(lambda n=padding: {"k": os.environ["HF_TOKEN"], "p": "p" * n})
        assert failure["code"] == "secret_in_result"
        assert "HF_TOKEN" in failure["message"]
        assert VALUE not in failure["message"]
    assert "result" not in controller.stored
    assert guarded.value(lambda: len(os.environ["HF_TOKEN"])) == len(VALUE)


def test_scripts_too(guarded: Runner) -> None:
    guarded.start_script(
        {"main.py": "import os, sys\nvalue = os.environ['HF_TOKEN']\nprint(value)\nsys.exit(value)"}
    )
    end = guarded.end()
    assert end["failure"]["code"] == "exit_code"
    assert clean(guarded, end)
    assert guarded.output() == b"[HF_TOKEN]\n"


def test_without_secrets_nothing_is_in_the_way(runner: Runner) -> None:
    assert runner.value(lambda: os.environ.get("CORRAL_SECRETS")) is None
    assert runner.value(lambda: "corral.runtime.channels.redaction" in sys.modules) is False


@given(
    pieces=st.lists(st.sampled_from([b"hf_", b"hf_abc", b"def", b"abc", b"x", b"hf_abcdef"])),
    cuts=st.lists(st.integers(0, 40)),
)
def test_pieces_show_what_the_whole_would(pieces: list[bytes], cuts: list[int]) -> None:
    """However a stream is cut, what is shown is the same and holds no value."""
    data = b"".join(pieces)
    redactor = Redactor({"A": "hf_abcdef", "B": "hf_abcdefhf_abc", "C": "abchf_"})
    screen = StreamRedactor(redactor, 1)
    shown, at = b"", 0
    for cut in sorted(cuts):
        shown += screen.pass_on(0, data[at:cut])
        at = max(at, cut)
    shown += screen.pass_on(0, data[at:]) + screen.rest(0)
    assert not redactor.holds(shown)
    assert shown == redactor.data(data)


def test_nothing_shows_the_values_of_a_redactor() -> None:
    assert "hf_" not in repr(Redactor({"A": "hf_abcdef"}))
    assert pickle.dumps(SECRETS)  # the test's own secrets are plain, for comparison
