"""A warm process: what one attempt leaves behind, and what the next one finds."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from tests.eventually import eventually
from tests.runtime.harness import Controller, Runner, alive

cloudpickle.register_pickle_by_value(sys.modules[__name__])


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def close_what_has_a_number() -> None:
    os.closerange(3, 200)


def replace_lists() -> None:
    sys.path = tuple(sys.path)  # type: ignore[assignment]
    sys.argv = None  # type: ignore[assignment]


@pytest.mark.forked
@pytest.mark.parametrize("rude", [close_what_has_a_number, replace_lists])
def test_a_rude_attempt_does_not_kill_the_process(runner: Runner, rude: Callable[[], None]) -> None:
    pid = runner.value(os.getpid)
    runner.value(rude)
    assert runner.value(os.getpid) == pid
    assert runner.value(lambda: (type(sys.path), type(sys.argv))) == (list, list)


@pytest.mark.forked
def test_each_attempt_finds_a_clean_process(runner: Runner) -> None:
    def look() -> tuple[object, ...]:
        umask = os.umask(0o022)
        os.umask(umask)
        return (
            os.environ.get("LEFT"),
            "PATH" in os.environ,
            umask,
            signal.getsignal(signal.SIGUSR1),
            [signal.getitimer(timer)[0] for timer in TIMERS],
            signal.getsignal(signal.SIGPROF),
            gc.isenabled(),
            sys.getrecursionlimit(),
            socket.getdefaulttimeout(),
            sys.path[0],
            len(sys.argv),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        )

    def spoil() -> None:
        del os.environ["PATH"]
        os.environ["LEFT"] = "behind"
        os.chdir("/")
        os.umask(0o777)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for timer in TIMERS:
            signal.setitimer(timer, 100)
        signal.signal(signal.SIGPROF, print)
        gc.disable()
        sys.setrecursionlimit(77)
        socket.setdefaulttimeout(0.001)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        sys.path.insert(0, "/spoiled")
        sys.argv.append("more")

    before = runner.value(look)
    runner.value(spoil)
    assert runner.value(look) == before


def test_each_attempt_has_its_own_folders_and_names(runner: Runner) -> None:
    def look() -> dict[str, str]:
        names = ("CORRAL_JOB_ID", "CORRAL_ATTEMPT", "CORRAL_OUTPUT_DIR", "TMPDIR")
        return {name: os.environ[name] for name in names} | {
            "cwd": os.getcwd(),
            "temp": tempfile.gettempdir(),
        }

    for number in (1, 2):
        folder = runner.start(look)
        assert runner.load(runner.end()) == {
            "CORRAL_JOB_ID": f"job-{number}",
            "CORRAL_ATTEMPT": str(number),
            "CORRAL_OUTPUT_DIR": str(folder / "output"),
            "TMPDIR": str(folder / "tmp"),
            "cwd": str(folder / "work"),
            "temp": str(folder / "tmp"),
        }


def test_an_order_that_waits_finds_nothing_of_the_one_before_it(
    runner: Runner, controller: Controller
) -> None:
    def litter(number: int) -> list[str]:
        folders = (os.getcwd(), os.environ["CORRAL_OUTPUT_DIR"], os.environ["TMPDIR"])
        found = [name for folder in folders for name in os.listdir(folder)]
        for folder in folders:
            os.makedirs(os.path.join(folder, "deep", "down"))
            with open(os.path.join(folder, f"file{number}"), "w") as file:
                file.write("x")
        return found

    for number in range(10):
        work = {
            "type": "function",
            "function": runner.blob(cloudpickle.dumps(litter)),
            "arguments": runner.blob(cloudpickle.dumps(((number,), {}))),
        }
        runner.start_work(work, folder=runner.folder / "shared")
    assert [runner.load(runner.end()) for _ in range(10)] == [[]] * 10
    assert sorted(controller.artifacts) == [f"file{number}" for number in range(10)]


def test_variables_of_the_runner_and_of_one_job(start_runner: Callable[..., Runner]) -> None:
    runner = start_runner(environ={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    look = {
        "type": "function",
        "function": runner.blob(
            cloudpickle.dumps(lambda: (os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("MINE")))
        ),
        "arguments": runner.blob(cloudpickle.dumps(((), {}))),
    }
    runner.start_work(look, env={"MINE": "job", "CUDA_VISIBLE_DEVICES": "GPU-2"})
    assert runner.load(runner.end()) == ("GPU-1", "job")
    runner.start_work(look)
    assert runner.load(runner.end()) == ("GPU-1", None)


def test_python_children_find_the_job_and_the_user_s_own_path(
    start_runner: Callable[..., Runner],
) -> None:
    runner = start_runner(environ={"PYTHONPATH": "/somewhere/else"})

    def child() -> None:
        code = "import sys; from corral import job; print(job.id(), '/somewhere/else' in sys.path)"
        subprocess.run([sys.executable, "-c", code], check=True)

    for number in (1, 2):
        runner.value(child)
        assert runner.output() == f"job-{number} True\n".encode()


def lower(limit: int) -> None:
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (10_000 if soft == resource.RLIM_INFINITY else soft - 1, hard))


@pytest.mark.forked
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lower, (resource.RLIMIT_CPU,)),
        (lower, (resource.RLIMIT_NOFILE,)),
        (os.nice, (1,)),
        (os.sched_setaffinity, (0, [min(os.sched_getaffinity(0))])),
    ],
)
def test_changed_limits_retire_the_process(
    runner: Runner, function: Callable[..., object], args: tuple[object, ...]
) -> None:
    if function is os.sched_setaffinity and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is but one processor")
    assert not runner.run(os.getpid)["retire"]
    assert runner.run(function, *args)["retire"]


def test_a_process_that_the_agent_moves_between_attempts_stays(runner: Runner) -> None:
    pid = runner.value(os.getpid)
    os.sched_setaffinity(pid, [min(os.sched_getaffinity(0))])
    assert not runner.run(os.getpid)["retire"]


def test_a_child_left_behind_retires_the_process_and_is_ended(runner: Runner) -> None:
    frame = runner.run(lambda: subprocess.Popen(["sleep", "60"]).pid)
    assert frame["retire"]
    pid = runner.load(frame)
    assert runner.gone() == 0
    eventually(lambda: not alive(pid), "the child to end")


def test_a_daemon_is_found_and_ended(runner: Runner) -> None:
    def daemonize() -> int:
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writes, str(os.getpid()).encode())
                signal.pause()
            os._exit(0)
        os.waitpid(child, 0)
        return int(os.read(reads, 20))

    frame = runner.run(daemonize)
    assert frame["retire"]
    pid = runner.load(frame)
    runner.gone()
    eventually(lambda: not alive(pid), "the daemon to end")


ORPHANS = """
import os, subprocess, time

def stat(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()

def zombies():
    above, pid = set(), os.getpid()
    while pid > 1 and len(above) < 3:
        above.add(pid)
        pid = int(stat(pid)[1])
    count = 0
    for name in os.listdir("/proc"):
        try:
            state, parent = stat(name)[:2] if name.isdigit() else ("", 0)
        except OSError:
            continue
        count += state == "Z" and int(parent) in above
        count += state != "Z" and int(parent) == os.getppid() and int(name) != os.getpid()
    return count

subprocess.run(["sh", "-c", "for n in $(seq 300); do (sleep 0.01 &) ; done"], check=True)
until = time.monotonic() + 10
while (left := zombies()) and time.monotonic() < until:
    time.sleep(0.02)
print("left", left, flush=True)
"""


@pytest.mark.parametrize("kind", ["function", "script"])
@pytest.mark.forked
def test_what_lost_its_parent_is_reaped_while_the_job_runs(runner: Runner, kind: str) -> None:
    if kind == "script":
        runner.start_script({"main.py": ORPHANS})
    else:
        runner.start(exec, ORPHANS, {})
    frame = runner.end()
    assert frame["frame"] == "result", frame
    assert runner.output() == b"left 0\n"
    assert frame["retire"] is (kind == "script")


HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # this thread alone
"""


@pytest.mark.forked
@pytest.mark.parametrize("isolate", [True, False])
def test_a_process_whose_first_thread_ended_is_no_process_that_ended(
    start_runner: Callable[..., Runner], isolate: bool
) -> None:
    runner = start_runner(isolate=isolate)

    def leave() -> int:
        command = [sys.executable, "-c", HEADLESS]
        pid = subprocess.Popen(command, start_new_session=True).pid
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        return pid

    frame = runner.run(leave)
    assert frame["retire"]
    assert runner.gone() == 0
    assert not Path(f"/proc/{runner.load(frame)}").exists()


@pytest.mark.forked
def test_what_ended_and_was_not_reaped_is_not_left(runner: Runner) -> None:
    """The supervisor of a busy machine may come late to it."""

    def orphan() -> None:
        subprocess.run(["sh", "-c", "true & exec true"], check=True)

    os.kill(runner.process.pid, signal.SIGSTOP)
    try:
        frame = runner.run(orphan)
    finally:
        os.kill(runner.process.pid, signal.SIGCONT)
    assert not frame["retire"]


def test_children_that_ended_are_no_reason_to_retire(runner: Runner) -> None:
    def children() -> None:
        subprocess.run(["true"], check=True)
        process = subprocess.Popen(["true"])
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert not runner.run(children)["retire"]


def test_a_process_left_behind_that_prints_for_ever_does_not_hold_up_the_end(
    runner: Runner,
) -> None:
    frame = runner.run(lambda: subprocess.Popen(["yes"]).pid)
    assert frame["frame"] == "result"
    assert frame["retire"]
    runner.process.stdout.read()  # type: ignore[union-attr]
    assert runner.gone() == 0


def write_outputs(fail: bool) -> None:
    folder = Path(os.environ["CORRAL_OUTPUT_DIR"])
    (folder / "model.txt").write_text("weights")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "grüße & co.txt").write_text("named")
    (folder / "empty").touch()
    (folder / "outside").symlink_to("/etc/hostname")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    if fail:
        raise ValueError("after writing")


def test_files_in_the_output_folder_become_artifacts(
    runner: Runner, controller: Controller
) -> None:
    kept = {"model.txt": b"weights", "deep/er/grüße & co.txt": b"named", "empty": b""}
    assert runner.run(write_outputs, False)["frame"] == "result"
    assert controller.artifacts == kept
    told = {frame["name"]: frame["size"] for frame in runner.kinds("artifact")}
    assert told == {name: len(body) for name, body in kept.items()}

    controller.stored.clear()
    assert runner.failure(write_outputs, True)["message"] == "after writing"
    assert controller.artifacts == kept


def test_an_artifact_that_cannot_be_stored(runner: Runner, controller: Controller) -> None:
    def write() -> None:
        Path(os.environ["CORRAL_OUTPUT_DIR"], "a").write_text("a")

    def write_and_fail() -> None:
        Path(os.environ["CORRAL_OUTPUT_DIR"], "a").write_text("a")
        raise ValueError("its own failure")

    controller.refuse = [413]
    assert runner.run(write)["frame"] == "result"
    assert b"not kept: The controller refused artifacts/a: 413" in runner.output("stderr")
    controller.refuse = [409]
    assert runner.failure(write)["code"] == "transfer_failed"
    controller.refuse = [409]
    assert runner.failure(write_and_fail)["message"] == "its own failure"
    assert b"not all files of the job were kept" in runner.output("stderr")


def test_files_with_odd_names_are_told_and_the_rest_is_kept(
    runner: Runner, controller: Controller
) -> None:
    def write() -> None:
        folder = os.fsencode(os.environ["CORRAL_OUTPUT_DIR"])
        deep = b"/".join([b"d" * 250] * 3)
        os.makedirs(os.path.join(folder, deep))
        names = (b"a", b"new\nline", b"back\\slash", b"\xff", deep + b"/file", b"\x1b[2J", b"z")
        for name in names:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(b"x")

    assert runner.run(write)["frame"] == "result"
    assert controller.artifacts == {"a": b"x", "z": b"x"}
    told = runner.output("stderr").decode().splitlines()
    assert len(told) == 5
    assert all("was not kept" in line and line.isprintable() for line in told)


def test_folders_of_any_depth(runner: Runner) -> None:
    def dig() -> None:
        path = os.environ["CORRAL_OUTPUT_DIR"]
        for _ in range(1200):
            path += "/d"
            os.mkdir(path)
        Path(path, "file").touch()

    folder = runner.start(dig)
    assert runner.end()["frame"] == "result"
    assert b"was not kept" in runner.output("stderr")
    # Python's own way to remove it may be too deep for Python.
    subprocess.run(["rm", "-rf", folder / "output"], check=True)


def test_a_missing_output_folder_is_no_failure(runner: Runner) -> None:
    assert runner.run(lambda: os.rmdir(os.environ["CORRAL_OUTPUT_DIR"]))["frame"] == "result"
