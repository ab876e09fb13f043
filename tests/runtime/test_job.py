"""`from corral import job`, inside and outside of a job."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest

from corral import job
from corral.runtime.channels.frames import words_to_frames
from tests.runtime.harness import Controller, Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# --- outside --------------------------------------------------------------------------------------


def test_outside_a_job_everything_is_harmless(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job.progress(0.4, "epoch 2")
    job.metric(loss=0.1, step=3)
    job.metric("loss", 0.1)
    job.checkpoint({"epoch": 2})
    assert job.restore("default") == "default"
    assert job.cancelled() is False
    assert job.id() == ""
    assert job.attempt() == 1
    assert job.output_dir() == Path.cwd()
    (tmp_path / "file").touch()
    job.artifact(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="to keep as an artifact"):
        job.artifact(tmp_path / "nothing")
    with pytest.raises(TypeError, match="needs a value"):
        job.metric("loss")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["../up", "/abs", "a//b", "", ".", "x" * 513, "nul\0", "a\nb", "a\\b", "\udc80"]
)
def test_names_that_no_artifact_can_have(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="artifact's name"):
        job.artifact(tmp_path / "file", name)


def test_it_needs_nothing_but_the_standard_library(kit: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from corral import job; job.progress(1);"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(kit)]
    told = subprocess.check_output(command, text=True).strip()
    assert told == "['__main__', 'corral']"


# --- inside ---------------------------------------------------------------------------------------


def test_progress_and_metrics_become_frames(runner: Runner) -> None:
    def tell() -> None:
        job.progress(0.4, "epoch 2")
        job.metric(loss=0.1, acc=1, step=3)
        job.metric("lr", 1e-3)
        job.metric({"a/b": 2.0}, step=4)
        job.metric(bad=float("nan"), over=float("inf"), under=-float("inf"))

    runner.value(tell)
    assert runner.kinds("progress") == [
        {"frame": "progress", "fraction": 0.4, "message": "epoch 2"}
    ]
    assert runner.kinds("metric") == [
        {"frame": "metric", "values": {"loss": 0.1, "acc": 1.0}, "step": 3},
        {"frame": "metric", "values": {"lr": 0.001}, "step": None},
        {"frame": "metric", "values": {"a/b": 2.0}, "step": 4},
        {
            "frame": "metric",
            "values": {"bad": "NaN", "over": "Infinity", "under": "-Infinity"},
            "step": None,
        },
    ]


def test_odd_values_are_brought_into_shape(runner: Runner) -> None:
    def tell() -> None:
        job.progress(None, "no idea")
        job.progress(1.0000001, "ü\udc80🤠" * 1000)
        job.metric({f"metric {number} " + "n🤠" * 100: number for number in range(50)})

    runner.value(tell)
    last = runner.kinds("progress")[-1]
    assert last["fraction"] == 1.0
    assert last["message"].startswith("ü?🤠")
    assert sum(len(frame["values"]) for frame in runner.kinds("metric")) == 50


@pytest.mark.parametrize(
    ("said", "shown"),
    [(1.05, 1.0), (40, 1.0), (-0.1, 0.0), (float("inf"), 1.0), (float("nan"), None), ("x", None)],
)
def test_no_job_ends_for_its_progress(runner: Runner, said: float, shown: float | None) -> None:
    def tell() -> str:
        job.progress(said)
        job.progress(said)
        return "done"

    assert runner.value(tell) == "done"
    assert runner.kinds("progress")[-1]["fraction"] == shown
    told = runner.output("stderr")
    assert told.count(b"job.progress takes a fraction, 0 to 1; got ") == 1  # not for every step


def test_words_keep_their_order() -> None:
    def word(kind: str, number: float) -> bytes:
        fields = {"fraction": number} if kind == "progress" else {"values": {"n": number}}
        return json.dumps({"frame": kind, **fields}).encode() + b"\n"

    said = [("progress", 0.1), ("progress", 0.2), ("metric", 1), ("metric", 2), ("progress", 0.3)]
    frames = [
        json.loads(line)
        for line in words_to_frames(b"".join(word(kind, number) for kind, number in said))
    ]
    told = [(frame["frame"], frame.get("fraction", frame.get("values"))) for frame in frames]
    assert told == [
        ("progress", 0.2), ("metric", {"n": 1.0}), ("metric", {"n": 2.0}), ("progress", 0.3),
    ]  # fmt: skip


@pytest.mark.forked
def test_of_much_progress_the_last_word_counts(runner: Runner) -> None:
    def hurry() -> None:
        for number in range(20_000):
            job.progress(number / 19_999)

    runner.value(hurry)
    assert runner.kinds("progress")[-1]["fraction"] == 1.0
    assert len(runner.kinds("progress")) < 5_000


@pytest.mark.forked
def test_only_well_formed_words_pass(runner: Runner) -> None:
    def forge() -> None:
        fd = int(os.environ["CORRAL_FRAMES_FD"])
        for line in (
            b"junk",
            b'{"frame":"result","result":null,"retire":false}',
            b'{"frame":"error","failure":{"code":"x","message":"y"}}',
            b'{"frame":"progress","fraction":"much"}',
            b'{"frame":"metric","values":{"a":"b"}}',
            b'{"frame":"metric","values":3}',
            b"[" * 3000,
            b"\xff\xfe",
        ):
            os.write(fd, line + b"\n")
        job.progress(0.5)

    assert runner.value(forge) is None
    assert [frame["frame"] for frame in runner.frames] == ["started", "progress", "result"]


def test_threads_and_forked_children_speak_too(runner: Runner) -> None:
    def crowd() -> None:
        def speak(name: str) -> None:
            for number in range(50):
                job.metric({name: number}, step=number)

        threads = [threading.Thread(target=speak, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        if (child := os.fork()) == 0:
            speak("child")
            os._exit(0)
        for thread in threads:
            thread.join()
        os.waitpid(child, 0)

    assert runner.run(crowd)["frame"] == "result"
    assert len(runner.kinds("metric")) == 250


@pytest.mark.forked
def test_who_speaks_while_another_looks_for_the_pipe_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, writes = os.pipe()
    fstat, inside = os.fstat, threading.Event()

    def slow(fd: int) -> os.stat_result:
        if not inside.is_set():
            inside.set()
            other = threading.Thread(target=job.progress, args=(0.5,))
            other.start()
            other.join()
        return fstat(fd)

    monkeypatch.setattr(job, "_state", job._State())
    monkeypatch.setenv("CORRAL_FRAMES_FD", str(writes))
    monkeypatch.setenv("CORRAL_FRAMES_INODE", str(fstat(writes).st_ino))
    monkeypatch.setattr(os, "fstat", slow)
    job.progress(0.6)
    os.close(writes)
    with open(reads, "rb") as said:
        assert len(said.readlines()) == 2


@pytest.mark.forked
def test_a_child_without_the_pipe_writes_nowhere(runner: Runner) -> None:
    code = (
        "import os; n = int(os.environ['CORRAL_FRAMES_FD'])\n"
        "f = os.open('innocent', os.O_CREAT | os.O_WRONLY); os.dup2(f, n)\n"
        "from corral import job; job.progress(0.5); print(os.path.getsize('innocent'))"
    )

    def child() -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    runner.value(child)
    assert runner.output() == b"0\n"


def test_artifacts_are_kept_under_their_names(runner: Runner, controller: Controller) -> None:
    def keep() -> None:
        Path("plot.png").write_bytes(b"png")
        job.artifact("plot.png")
        job.artifact("plot.png", "plots/first.png")
        inside = job.output_dir() / "deep" / "model.bin"
        inside.parent.mkdir()
        inside.write_bytes(b"model")
        job.artifact(inside)

    runner.value(keep)
    expected = {"plot.png": b"png", "plots/first.png": b"png", "deep/model.bin": b"model"}
    assert controller.artifacts == expected
    # What the job kept itself is not sent again at the end.
    assert [frame["name"] for frame in runner.kinds("artifact")] == list(expected)
    digests = {frame["name"]: frame["file_sha256"] for frame in runner.kinds("artifact")}
    assert digests["plot.png"] == hashlib.sha256(b"png").hexdigest()


def count_to_four() -> list[int]:
    done: list[int] = job.restore([])
    while len(done) < 4:
        done.append(len(done))
        job.checkpoint(done)
        if done == [0, 1]:
            raise RuntimeError("half way")
    assert job.restore() == done
    return done


def test_a_retry_goes_on_from_the_last_checkpoint_in_another_process(
    runner: Runner, start_runner: object, controller: Controller, kit: Path, tmp_path: Path
) -> None:
    assert runner.failure(count_to_four)["message"] == "half way"
    last = runner.kinds("checkpoint")[-1]
    assert controller.checkpoint is not None
    assert last["sha256"] == hashlib.sha256(controller.checkpoint).hexdigest()
    elsewhere = Runner(kit, tmp_path / "elsewhere", controller)
    assert elsewhere.value(count_to_four, checkpoint=last["sha256"]) == [0, 1, 2, 3]
    elsewhere.close()


def test_without_a_checkpoint_there_is_the_default(runner: Runner, controller: Controller) -> None:
    assert runner.value(lambda: job.restore("fresh")) == "fresh"
    assert controller.requests == []
    assert runner.value(lambda: job.restore("gone"), checkpoint="0" * 64) == "gone"


def test_a_checkpoint_that_was_damaged_is_a_failed_transfer(
    runner: Runner, controller: Controller
) -> None:
    controller.checkpoint = b"damaged"
    failure = runner.failure(lambda: job.restore(), checkpoint="0" * 64)
    assert failure["code"] == "transfer_failed"


def test_a_restarting_controller_is_waited_for(runner: Runner, controller: Controller) -> None:
    controller.refuse = [503, 502]
    runner.value(lambda: job.checkpoint("kept"))
    assert controller.checkpoint is not None


def test_an_artifact_that_the_controller_refuses_is_the_function_s_to_handle(
    runner: Runner, controller: Controller
) -> None:
    def try_to_keep() -> str:
        Path("large").write_text("large")
        try:
            job.artifact("large")
        except OSError as error:
            return str(error)
        return "kept"

    controller.refuse = [413]
    assert runner.value(try_to_keep).startswith("The controller refused artifacts/large: 413")
    controller.refuse = [409]
    assert runner.failure(try_to_keep)["code"] == "transfer_failed"
