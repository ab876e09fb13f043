"""run and submit: what is asked for, what is shown, which code comes back, what Ctrl-C means."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from corral.contract import corral_pb2 as pb
from corral.core.errors import InvalidJob, NoGpuWorkers
from corral.core.text import seconds
from tests.cli.conftest import Corral
from tests.sdk.orchestrator import Orchestrator, Served


def test_run_streams_and_passes_the_code_on(
    corral: Corral, orchestrator: Orchestrator, script: Path
) -> None:
    done = corral("run", "--name", "n", str(script), "3", "--name", "x")
    assert (done.code, done.out) == (3, "hello 3 --name x\nbye\n"), done.err
    assert "failed: exit code 3" in done.err
    job = next(iter(orchestrator.jobs.values())).submission
    assert (job.name, list(job.script.argv), job.queue_class) == (
        "n",
        ["3", "--name", "x"],
        "interactive",
    )


def test_every_option_arrives(corral: Corral, orchestrator: Orchestrator, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "go.py").write_text("print('went')")
    (tmp_path / "r.txt").write_text("scipy\n")
    options = "--entry go.py --gpus 1 --gpu rtx4090 --vram-gb 8 --cpus 2 --memory-gb 4"
    options += " --worker attic --read /data/set"
    options += " --worker-label ssd --duration 2h --with numpy --env A=b=c --class interactive"
    options += " --priority 3 --retries 2 --name n --label k=v --user me --key once --batch b"
    options += " --model sdxl --model vae"
    options += " --secret ONE --secret TWO --notify https://example.org/hook"
    (tmp_path / "data.csv").write_text("1,2")
    options += f" --input in/data.csv={tmp_path / 'data.csv'} --input again={'0' * 64}"
    options += f" --fresh --no-wait --requirements {tmp_path / 'r.txt'}"
    done = corral("submit", *options.split(), str(folder), "-x")
    assert done.out == f"{next(iter(orchestrator.jobs))}\n"
    job = next(iter(orchestrator.jobs.values())).submission
    expected = pb.JobSubmission(
        script=pb.ScriptCall(package=job.script.package, entry="go.py", argv=["-x"]),
        requirements=["numpy", "scipy"],
        duration=7200,
        gpus=1,
        python=job.python,
        env={"A": "b=c"},
        secrets=["ONE", "TWO"],
        notify="https://example.org/hook",
        vram_gb=8,
        gpu="rtx4090",
        read=["/data/set"],
        cpus=2,
        memory_gb=4,
        worker_labels=["ssd"],
        models=["sdxl", "vae"],
        worker="attic",
        queue_class="interactive",
        priority=3,
        retries=2,
        name="n",
        labels={"k": "v"},
        user="me",
        idempotency_key="once",
        batch="b",
        fresh=True,
        wait=False,
        inputs=[
            pb.Input(name="again", sha256="0" * 64),
            pb.Input(name="in/data.csv", sha256=sha256(b"1,2").hexdigest(), size=3),
        ],
    )
    assert job == expected
    assert orchestrator.blobs[sha256(b"1,2").hexdigest()] == b"1,2"
    assert corral("submit", "--key", "once", str(folder / "go.py")).out == done.out


def test_put_sends_a_file_once(corral: Corral, orchestrator: Orchestrator, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"moo")
    digest = sha256(b"moo").hexdigest()
    assert corral("put", str(tmp_path / "a.bin")).out == f"{digest}  a.bin\n"
    again = corral("put", "--json", str(tmp_path / "a.bin"))
    assert json.loads(again.out) == [{"sha256": digest, "size": 3, "name": "a.bin", "path": ""}]
    assert orchestrator.calls["PutAsset"] == 1
    missing = corral("put", str(tmp_path / "b.bin"))
    assert missing.code != 0
    assert missing.err.splitlines()[0].endswith("b.bin' to put.")
    assert corral("run", "--input", "data.csv", str(tmp_path / "x.py")).err.startswith("--input is")


def test_a_folder_is_put_file_by_file(
    corral: Corral, orchestrator: Orchestrator, tmp_path: Path, script: Path
) -> None:
    (tmp_path / "set" / "deep").mkdir(parents=True)
    (tmp_path / "set" / "a.csv").write_bytes(b"1")
    (tmp_path / "set" / "deep" / "b.csv").write_bytes(b"2")
    one, two = (sha256(data).hexdigest() for data in (b"1", b"2"))
    put = corral("put", str(tmp_path / "set"))
    assert put.out == f"{one}  set/a.csv\n{two}  set/deep/b.csv\n"
    job = corral("submit", "--input", f"data={tmp_path / 'set'}", str(script)).out.strip()
    inputs = orchestrator.jobs[job].submission.inputs
    assert [(put.name, put.sha256) for put in inputs] == [
        ("data/a.csv", one),
        ("data/deep/b.csv", two),
    ]
    for name in ("a.csv", "deep/b.csv"):
        (tmp_path / "set" / name).write_bytes(bytes(3_000_000) + name.encode())
    told = "corral: sending 2 files (6.0 MB)"
    folder = tmp_path / "set"
    for words in (("put", str(folder)), ("submit", "--input", f"d={folder}", str(script))):
        begun, done = corral(*words).err.splitlines()
        assert begun == f"{told} …"
        assert done.startswith(f"{told}: done in ")
    (tmp_path / "empty").mkdir()
    assert "There is no file in the folder" in corral("put", str(tmp_path / "empty")).err


def test_events_as_json_lines(corral: Corral, served: Served, script: Path) -> None:
    done = corral("run", "--json", str(script))
    lines = [json.loads(line) for line in done.out.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds == ["state", "state", "output", "progress", "output", "ended"]
    assert lines[2]["text"] == "hello\n"
    assert lines[-1]["state"] == "succeeded"


def test_errors_are_one_sentence(corral: Corral, served: Served, script: Path) -> None:
    served.orchestrator.refuse = NoGpuWorkers("No GPU workers available")
    done = corral("run", str(script))
    assert (done.code, done.out, done.err) == (1, "", "No GPU workers available\n")
    refused = corral("submit", "--json", str(script))
    assert json.loads(refused.err)["error"]["code"] == "no_gpu_workers"
    assert refused.out == ""
    for words in (["--gpus", "1", "--gpu-memory", "0.5"], ["--env", "A"], ["--duration", "soon"]):
        wrong = corral("run", *words, str(script))
        assert wrong.code == 2
        assert len(wrong.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--class quick", "--class is 'interactive' or 'batch'; got 'quick'."),
        ("--cpus 0", "--cpus is at least 0.1 and at most 1024; got 0."),
        ("--gpus 1 --gpu-memory 0.5", "Give --gpus (whole GPUs) or --gpu-memory (a share"),
        ("--gpu-memory 0.25", "For whole GPUs use --gpus 1, 2, …"),
        ("--requirements numpy", "A single requirement is given as `--with numpy`."),
        ("--entry main.py", "leave `--entry` out"),
        ("--duration 5x", "--duration is a number of seconds"),
        ("--env FOO", "--env is written KEY=VALUE"),
    ],
)
def test_wrong_usage_speaks_of_options(
    corral: Corral, served: Served, script: Path, words: str, sentence: str
) -> None:
    done = corral("submit", *words.split(), str(script))
    assert done.code == 2
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_refusals_speak_of_options(corral: Corral, served: Served, script: Path) -> None:
    served.orchestrator.refuse = NoGpuWorkers("Or submit with wait=True (`--wait`) to queue it.")
    done = corral("run", str(script))
    assert (done.code, done.err) == (1, "Or submit with `--wait` to queue it.\n")


def test_only_python_scripts(corral: Corral, served: Served, tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("echo")
    assert (
        "only Python scripts (.py) or folders with main.py"
        in corral("run", str(tmp_path / "x.sh")).err
    )


def test_no_controller(corral: Corral, nobody: None, script: Path) -> None:
    done = corral("run", str(script))
    assert done.code == 1
    assert done.err == "No controller at 127.0.0.1:1. Start one with `corral up`.\n"


def test_durations() -> None:
    assert [seconds(text) for text in ("90", "90s", "1.5h", "2d")] == [90, 90, 5400, 172_800]
    with pytest.raises(InvalidJob):
        seconds("-1")


class Terminal:
    """`corral` in a terminal of its own, or with pipes where `tty` is false."""

    def __init__(self, home: Path, *words: str, tty: bool = True) -> None:
        self.seen = ""
        command = [sys.executable, "-m", "corral.cli.main", *words]
        environ = {**os.environ, "CORRAL_HOME": str(home), "TERM": "xterm", "COLUMNS": "80"}
        self._fd, theirs = pty.openpty() if tty else os.pipe()
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=theirs if tty else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 15
        while text not in self.seen:
            readable, _, _ = select.select([self._fd], [], [], deadline - time.monotonic())
            assert readable, f"{text!r} never came: {self.seen!r}"
            try:
                self.seen += os.read(self._fd, 4096).decode()
            except OSError:
                raise AssertionError(f"{text!r} never came: {self.seen!r}") from None

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        code = self.process.wait(15)
        os.close(self._fd)
        return code


@pytest.fixture
def waiting(served: Served, tmp_path: Path) -> Path:
    """A script that is held back, so that somebody waits for it."""
    served.orchestrator.hold = True
    path = tmp_path / "wait.py"
    path.write_text("print('ran')")
    return path


def say(served: Served, text: bytes) -> str:
    """Output of the only job, as proof that its follower follows."""
    served.orchestrator.accepted.wait(15)
    job_id = next(iter(served.orchestrator.jobs))
    output = pb.Output(stream="stdout", data=text)
    served.call(served.orchestrator.emit, job_id, output=output)
    return job_id


def test_ctrl_c_asks_and_detaches(served: Served, waiting: Path) -> None:
    terminal = Terminal(served.home, "run", str(waiting))
    job_id = say(served, b"started\n")
    terminal.until("started")
    terminal.interrupt()
    terminal.until("[d]etach, [c]ancel")
    terminal.type("\n")
    say(served, b"still here\n")
    terminal.until("still here")
    terminal.interrupt()
    terminal.until("go on following?")
    terminal.type("d\n")
    terminal.until(f"corral logs -f {job_id}")
    assert terminal.wait() == 0
    assert served.orchestrator.jobs[job_id].state == "queued"


def test_waiting_is_said(served: Served, waiting: Path) -> None:
    served.orchestrator.warnings.append("No known worker can run this; the job waits.")
    pipe = Terminal(served.home, "run", str(waiting), tty=False)
    pipe.until("No known worker can run this; the job waits.")
    job_id = next(iter(served.orchestrator.jobs))
    pipe.until(f"waiting; `corral why {job_id}` says for what\n")
    served.call(served.orchestrator.release)
    pipe.until("ran\n")
    assert pipe.wait() == 0


def test_second_ctrl_c_cancels(served: Served, waiting: Path) -> None:
    terminal = Terminal(served.home, "run", str(waiting))
    job_id = say(served, b"started\n")
    terminal.until("started")
    terminal.interrupt()
    terminal.until("[c]ancel")
    terminal.interrupt()
    terminal.until("was cancelled")
    assert terminal.wait() == 130
    assert served.orchestrator.jobs[job_id].state == "cancelled"


def test_ctrl_c_without_a_terminal_detaches(served: Served, waiting: Path) -> None:
    pipe = Terminal(served.home, "run", str(waiting), tty=False)
    job_id = say(served, b"started\n")
    pipe.until("started")
    pipe.interrupt()
    pipe.until(f"Job {job_id} goes on.")
    assert pipe.wait() == 130
    assert served.orchestrator.jobs[job_id].state == "queued"


def test_progress_is_drawn_on_a_terminal(served: Served, script: Path) -> None:
    terminal = Terminal(served.home, "run", str(script))
    terminal.until("50 %  halfway there")
    terminal.until("succeeded in")
    assert "hello\r\n" in terminal.seen
    assert "bye\r\n" in terminal.seen
    assert terminal.wait() == 0
