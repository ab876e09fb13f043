"""Attempts that run by themselves and report through the attempts' door: real controllers, real
processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import corral
from corral import Client, job
from corral.core.errors import JobCancelled, JobFailed
from corral.runtime.standalone.attempt import StandaloneAttempt
from tests.agent.test_builds import TRY, make_sdist
from tests.agent.test_environments import make_wheel
from tests.engines.losing_proxy import LosingProxy
from tests.eventually import eventually
from tests.live import LiveController
from tests.memory_group import memory_group
from tests.ports import free_port
from tests.runtime.harness import alive

PREFIX = (sys.executable, "-m", "tests.engines.children")
ENTRY = Path(corral.__file__).parent / "runtime" / "standalone" / "__main__.py"
VALUE = "a-secret-that-does-not-occur-by-chance"
LINES = 4000


def live(home: Path, **settings: Any) -> LiveController:
    """On a port of its own: whoever it started finds it there again."""
    home.mkdir(parents=True, exist_ok=True)
    told = {"worker": {"read_paths": [str(home.parent)]}, "cancel_grace_s": 10, **settings}
    (home / "corral.yaml").write_text(json.dumps(told))
    # Packages come from a folder here: no registry is asked.
    environ = {"UV_FIND_LINKS": str(home.parent / "wheels"), "UV_NO_INDEX": "1"}
    return LiveController(home, "--port", str(free_port()), prefix=PREFIX, environ=environ)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    with live(tmp_path_factory.mktemp("standalone") / "home") as started:
        yield started


@pytest.fixture
def client(here: LiveController) -> Iterator[Client]:
    with Client(home=here.home) as made:
        yield made


@pytest.fixture
def by_hand(here: LiveController) -> Iterator[Callable[[str], dict[str, Any]]]:
    """No process is started; who asks gets the ticket of a job's first attempt."""
    lever = here.home / "children" / "nobody"
    lever.touch()

    def ticket(job_id: str) -> dict[str, Any]:
        path = here.home / "children" / f"{job_id}.1.json"
        eventually(path.exists, "a ticket")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    yield ticket
    lever.unlink()


def talk(pauses: int = 0, path: str = "") -> int:
    """Lines with numbers, and a pause now and then until somebody made a file."""
    for number in range(LINES):
        print(f"line {number}", flush=number % 7 == 0)
        if pauses and number % (LINES // pauses) == 0:
            time.sleep(0.05)
    while path and not os.path.exists(path):
        time.sleep(0.01)
    print("after", flush=True)
    return LINES


SAID = "".join(f"line {number}\n" for number in range(LINES)) + "after\n"


def test_a_function_has_its_result_its_output_and_its_files(client: Client) -> None:
    def work() -> int:
        print("hello", flush=True)
        os.write(2, b"\xff raw")
        job.progress(0.5, "half")
        job.metric("loss", 0.25, step=3)
        Path(os.environ["CORRAL_OUTPUT_DIR"], "made.txt").write_text("kept")
        return os.getpid()

    handle = client.submit(work)
    assert handle.result(60) != os.getpid()
    assert "".join(handle.logs()) in ("hello\n\ufffd raw", "\ufffd rawhello\n")
    view = handle.status()
    assert (view.state, view.worker) == ("succeeded", "here")
    assert [one.name for one in handle.artifacts()] == ["made.txt"]
    assert any("half" in str(event) for event in handle.events(follow=False))


def test_much_goes_in_and_out(client: Client, tmp_path: Path) -> None:
    blob = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(blob)
    asset = client.put(tmp_path / "data")

    def reverse(data: bytes) -> bytes:
        return data[::-1] + Path("in/data").read_bytes()

    assert client.run(reverse, (blob,), inputs={"in/data": asset}) == blob[::-1] + blob


def test_a_script_and_its_exit_code(client: Client, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import sys; print('said'); sys.exit(int(sys.argv[1]))")
    handle = client.submit_script(tmp_path / "main.py", ["0"])
    assert handle.result(60) is None
    assert "".join(handle.logs()) == "said\n"
    with pytest.raises(JobFailed) as failed:
        client.submit_script(tmp_path / "main.py", ["7"]).result(60)
    assert failed.value.failure.code == "exit_code"


def test_an_image_is_drawn(client: Client) -> None:
    base = {"txt2img": {"model": "sketch", "width": 64, "height": 64, "steps": 2}}
    batch = client.batch({"backend": "sketch", "base": base, "prompts": ["a tower"]})
    assert batch.wait(timeout=60).states == {"succeeded": 1}
    assert len(batch.images()) == 1


def test_a_failing_function_has_its_traceback(client: Client) -> None:
    def fails() -> None:
        raise KeyError("which one")

    with pytest.raises(JobFailed) as failed:
        client.run(fails)
    assert failed.value.failure.code == "exception"
    assert "raise KeyError" in failed.value.remote_traceback
    assert "corral/runtime" not in failed.value.remote_traceback
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_cancel_leaves_its_grace_and_then_nothing(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "said"
    path.touch()

    def tidy() -> None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        print(f"{os.getpid()} {child}", flush=True)
        try:
            time.sleep(600)
        finally:
            print("tidied up", flush=True)

    handle = client.submit(tidy)
    logs = handle.logs()
    pids = [int(word) for word in next(logs).split()]
    handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(60)
    assert "tidied up" in "".join(logs)
    assert not any(alive(pid) for pid in pids)


def test_a_duration_is_kept(client: Client) -> None:
    with pytest.raises(JobFailed) as failed:
        client.run(time.sleep, (600,), duration=1)
    assert failed.value.failure.code == "over_duration"


def test_more_time_reaches_an_attempt_that_runs(client: Client) -> None:
    def work() -> str:
        print("begun", flush=True)
        time.sleep(6)
        return "done"

    handle = client.submit(work, duration=5)
    logs = handle.logs()
    assert next(logs) == "begun\n"
    assert handle.extend("2h").duration == 7205.0
    assert "this job was given more time: it is ended after 2.0 h" in next(logs)
    assert handle.result(60) == "done"


@pytest.mark.parametrize(
    ("duration_s", "ran_s", "said"),
    [
        (3600.0, 1.0, ""),
        (3600.0, 31.0, "ended after 60.0 min, which holds where no other duration"),
        (7200.0, 6660.0, "in 9.0 min this job is ended, after its duration of 2.0 h"),
        (30.0, 29.0, ""),
    ],
)
def test_an_attempt_hears_of_its_end_in_time(duration_s: float, ran_s: float, said: str) -> None:
    told: list[tuple[dict[str, str], int]] = []
    attempt: Any = StandaloneAttempt.__new__(StandaloneAttempt)
    attempt._order = SimpleNamespace(job="01job")
    attempt._outbox = SimpleNamespace(add=lambda message, n, *, at_once: told.append((message, n)))
    attempt._duration_s, attempt._told_at = duration_s, 0.0
    attempt._since = time.monotonic() - ran_s
    attempt._until = attempt._since + duration_s
    for _ in range(3):
        assert attempt._tell_of_its_end() > time.monotonic()
    assert len(told) == bool(said)
    for message, n in told:
        assert said in message["text"]
        assert n == len(message["text"]), "its number counts what it adds"


@pytest.mark.long
def test_a_job_of_a_minute_hears_of_its_end(client: Client) -> None:
    handle = client.submit(time.sleep, (600,), duration=60)
    assert "this job is ended, after its duration of 60 s" in "".join(handle.logs())


def test_requirements_are_installed_once(client: Client, here: LiveController) -> None:
    make_wheel(wheels_of(here), "lonely")

    def value() -> int:
        import lonely  # type: ignore[import-not-found]

        return int(lonely.VALUE)

    assert client.run(value, requirements=["lonely==1.0"]) == 42
    made = {path: path.stat().st_ino for path in kept(here)}
    assert made
    assert client.run(value, requirements=["lonely==1.0"]) == 42
    assert {path: path.stat().st_ino for path in kept(here)} == made


def test_a_build_writes_nothing_that_others_run(client: Client, here: LiveController) -> None:
    folder = here.home / "standalone"
    paths = [str(folder / name / "evil") for name in ("pythons", "environments")]
    make_sdist(wheels_of(here), "gatecrasher", TRY.format(paths=paths))

    def done() -> dict[str, str]:
        import gatecrasher  # type: ignore[import-not-found]

        found: dict[str, str] = gatecrasher.VALUE
        return found

    assert client.run(done, requirements=["gatecrasher==1.0"]) == dict.fromkeys(
        paths, "PermissionError"
    )


def wheels_of(here: LiveController) -> Path:
    (folder := here.home.parent / "wheels").mkdir(exist_ok=True)
    return folder


def kept(here: LiveController) -> list[Path]:
    folder = here.home / "standalone" / "environments"
    return [path for path in folder.iterdir() if path.is_dir()]


def test_requirements_that_cannot_be_installed_say_so(client: Client) -> None:
    with pytest.raises(JobFailed) as failed:
        client.run(abs, (1,), requirements=["nowhere-to-be-found==1.0"])
    assert failed.value.failure.code == "environment_failed"
    assert "uv said" in failed.value.failure.message


def test_a_secret_is_in_the_environment_and_nowhere_else(
    client: Client, here: LiveController
) -> None:
    client.secrets.set("HIDDEN", VALUE)

    def look() -> tuple[int, bool]:
        print("it is", os.environ["HIDDEN"], flush=True)
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
        return len(os.environ["HIDDEN"]), b"HIDDEN" in words

    handle = client.submit(look, secrets=["HIDDEN"])
    assert handle.result(60) == (len(VALUE), False)
    assert VALUE not in "".join(handle.logs())
    files = (path for path in here.home.rglob("*") if path.is_file() and path.name != "secrets")
    assert [path for path in files if VALUE.encode() in path.read_bytes()] == []


def test_its_token_is_on_no_command_line(client: Client, here: LiveController) -> None:
    def parents() -> bytes:
        found, pid = b"", os.getpid()
        while pid > 1:
            found += Path(f"/proc/{pid}/cmdline").read_bytes()
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return found + "".join(f"{key}={text}" for key, text in os.environ.items()).encode()

    handle = client.submit(parents)
    seen = handle.result(60)
    ticket = json.loads((here.home / "children" / f"{handle.id}.1.json").read_bytes())
    assert b"corral.runtime.standalone" in seen
    assert ticket["token"].encode() not in seen


def test_a_process_that_is_killed_takes_its_job_along(client: Client, here: LiveController) -> None:
    def wait() -> None:
        print(os.getpid(), flush=True)
        time.sleep(600)

    handle = client.submit(wait)
    pid = int(next(handle.logs()))
    os.kill(int((here.home / "children" / f"{handle.id}.1.pid").read_text()), signal.SIGKILL)
    eventually(lambda: not alive(pid), "the job to go")
    eventually(lambda: handle.status().attempt == 2, "another attempt")
    handle.cancel()
    with pytest.raises(JobCancelled):
        handle.result(60)


def test_a_process_that_is_asked_to_stop_gives_its_job_back(
    client: Client, here: LiveController
) -> None:
    def first() -> bool:
        if os.environ["CORRAL_ATTEMPT"] == "1":
            print("here", flush=True)
            time.sleep(600)
        return True

    handle = client.submit(first)
    assert next(handle.logs())
    os.kill(int((here.home / "children" / f"{handle.id}.1.pid").read_text()), signal.SIGTERM)
    assert handle.result(60)
    assert handle.status().attempt == 2


def test_what_the_kernel_kills_for_memory_is_told(
    client: Client, by_hand: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    def grow() -> None:
        held = []
        while True:
            held.append(b"x" * (10 << 20))

    handle = client.submit(grow)
    environ = {"CORRAL_TICKET": json.dumps(by_hand(handle.id)), "PATH": os.environ["PATH"]}
    with memory_group(200) as prefix:
        subprocess.run(
            [*prefix, sys.executable, "-I", str(ENTRY)], env=environ, timeout=60, check=True
        )
    with pytest.raises(JobFailed) as failed:
        handle.result(60)
    assert failed.value.failure.code == "out_of_memory"
    assert "control group has 0.20 GB" in failed.value.failure.message


def test_by_its_path_with_a_ticket_from_the_environment(
    client: Client, by_hand: Callable[[str], dict[str, Any]]
) -> None:
    handle = client.submit(pow, (2, 10))
    environ = {"CORRAL_TICKET": json.dumps(by_hand(handle.id)), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-I", str(ENTRY)], env=environ, capture_output=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert handle.result(10) == 1024
    again = subprocess.run(
        [sys.executable, "-I", str(ENTRY)], env=environ, capture_output=True, timeout=60
    )
    assert again.returncode == 3
    assert b"is over" in again.stderr


def test_of_two_processes_for_one_attempt_one_runs_it(
    client: Client, by_hand: Callable[[str], dict[str, Any]]
) -> None:
    def count() -> None:
        print("ran", flush=True)
        time.sleep(1)

    handle = client.submit(count)
    environ = {"CORRAL_TICKET": json.dumps(by_hand(handle.id)), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "corral.runtime.standalone"]
    both = [subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(one.wait(60) for one in both) == [0, 3]
    assert handle.result(10) is None
    assert "".join(handle.logs()) == "ran\n"


def test_replies_that_are_lost_lose_no_output_and_double_none(
    client: Client, here: LiveController
) -> None:
    lever = here.home / "children" / "by"
    with LosingProxy(here.url) as proxy:
        lever.write_text(proxy.url)
        try:
            handle = client.submit(talk, (20,))
            assert handle.result(100) == LINES
        finally:
            lever.unlink()
        assert "".join(handle.logs()) == SAID
        assert proxy.lost > 3
        card = here.home / "children" / f"{handle.id}.1.pid"
        eventually(lambda: not card.exists(), "the end of its process, which needs the proxy")
    assert handle.status().attempt == 1


def test_a_controller_that_is_killed_finds_its_attempts_again(tmp_path: Path) -> None:
    controller = live(tmp_path / "home", worker={"write_paths": [str(tmp_path)]})
    go = tmp_path / "go"
    controller.start()
    try:
        with Client(home=controller.home) as client:
            handle = client.submit(talk, (20, str(go)))
            assert next(handle.logs())
        for _ in range(2):
            controller.kill()
            controller.start()
        go.touch()
        with Client(home=controller.home) as client:
            handle = client.job(handle.id)
            assert handle.result(60) == LINES
            assert "".join(handle.logs()) == SAID
            assert handle.status().attempt == 1
    finally:
        controller.stop()


def test_an_end_that_was_told_while_the_controller_was_away_is_not_lost(tmp_path: Path) -> None:
    controller = live(tmp_path / "home", worker={"write_paths": [str(tmp_path)]})
    go = tmp_path / "go"
    controller.start()
    try:
        with Client(home=controller.home) as client:
            handle = client.submit(talk, (0, str(go)))
            assert next(handle.logs())
            entry = int((controller.home / "children" / f"{handle.id}.1.pid").read_text())
        controller.kill()
        go.touch()
        eventually(lambda: runners(entry) == [], "the job's end")
        assert alive(entry)
        controller.start()
        with Client(home=controller.home) as client:
            assert client.job(handle.id).result(60) == LINES
            assert "".join(client.job(handle.id).logs()) == SAID
        eventually(lambda: not alive(entry), "the end of its process")
    finally:
        controller.stop()


def runners(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
