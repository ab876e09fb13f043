"""The sandbox: what it says it enforces is what a job meets."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from corral.runtime import hints
from corral.runtime.process import posix
from corral.runtime.sandbox import rules
from corral.runtime.sandbox.unseen import MOST_TOLD
from tests.runtime.harness import Runner

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.forked

needs_landlock = pytest.mark.skipif(
    rules.landlock_version() < 1, reason="this kernel has no Landlock"
)


@needs_landlock
def test_files_outside_are_out_of_reach(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("data")
    runner = start_runner(read_paths=[str(shared), "/no/such/path"])
    assert runner.ready["enforced"]["files"] == "landlock"
    assert runner.failure(lambda: secret.read_text())["type"] == "PermissionError"
    assert runner.failure(lambda: os.listdir(tmp_path))["type"] == "PermissionError"
    assert runner.value(lambda: (shared / "data").read_text()) == "data"
    assert runner.failure(lambda: (shared / "more").write_text(""))["type"] == "PermissionError"
    # And what it starts is confined the same way.
    assert runner.value(lambda: subprocess.call(["cat", str(secret)], stderr=-3)) == 1


@needs_landlock
def test_a_denied_path_comes_with_what_to_do(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("1,2")
    (shared := tmp_path / "shared").mkdir()
    runner = start_runner(read_paths=[str(shared)])
    message = runner.failure(lambda: (tmp_path / "mine.csv").read_text())["message"]
    assert message.startswith(f"[Errno 13] Permission denied: '{tmp_path}/mine.csv'. Jobs see only")
    assert "ask for the path with read=[…] (--read)" in message
    assert "worker.read_paths" in message
    message = runner.failure(lambda: (shared / "new").write_text(""))["message"]
    assert "Jobs may read there but not write" in message


LOOKING = """
import glob, os, sys
for folder in sys.argv[1:]:
    assert glob.glob(folder + "/*") == []
    assert list(os.walk(folder)) == []
    try:
        open(os.path.join(folder, "a.csv"))
    except OSError:
        pass
"""


@needs_landlock
def test_a_folder_that_is_not_seen_is_told_once(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    seen, hidden, other = (tmp_path / name for name in ("seen", "hidden", "other"))
    for folder in (seen, hidden, other):
        folder.mkdir()
        (folder / "a.csv").write_text("1")
    runner = start_runner(read_paths=[str(seen)])

    def look() -> tuple[int, int]:
        for _ in range(3):
            list(os.walk(hidden))
        return len(glob.glob(f"{hidden}/*")), len(glob.glob(f"{seen}/*"))

    def told(folder: Path) -> str:
        return f"corral: this job sees nothing of {folder} on this worker."

    for _ in range(2):  # each attempt in the same process
        assert runner.value(look) == (0, 1)
        (line,) = runner.output("stderr").decode().splitlines()
        assert line.startswith(told(hidden))
        assert f"worker: {{read_paths: [{hidden}]}}" in line

    assert runner.value(lambda: list(os.walk(hidden / "no"))) == []
    assert runner.output("stderr") == b""  # there is nothing to be seen

    runner.start_script({"main.py": LOOKING}, argv=(str(hidden), str(other)))
    assert runner.end()["frame"] == "result"
    lines = runner.output("stderr").decode().splitlines()
    assert [line.partition(" Its owner")[0] for line in lines] == [told(hidden), told(other)]


@needs_landlock
def test_a_folder_that_is_seen_in_part_is_no_folder_to_open(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    (seen := tmp_path / "part" / "seen").mkdir(parents=True)
    runner = start_runner(read_paths=[str(seen)])
    for folder in ("/", tmp_path / "part"):
        assert runner.value(lambda folder=folder: list(os.walk(folder))) == []
        assert runner.output("stderr") == b""


@needs_landlock
def test_listing_is_what_it_was(start_runner: Callable[..., Runner]) -> None:
    def check() -> object:
        import pickle
        import shutil

        os.mkdir("deep")
        assert os.listdir() == os.listdir(b".".decode()) == ["deep"]
        with os.scandir("deep") as found:
            assert list(found) == []
        fd = os.open("deep", os.O_RDONLY)
        assert os.listdir(fd) == []
        os.close(fd)
        assert os.scandir in os.supports_fd
        assert pickle.loads(pickle.dumps(os.listdir)) is os.listdir
        shutil.rmtree("deep")
        try:
            os.listdir("/no/such/folder")
        except FileNotFoundError as error:
            return error.filename
        return None

    assert start_runner().value(check) == "/no/such/folder"


@needs_landlock
def test_no_more_is_told_than_somebody_reads(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    for number in range(MOST_TOLD + 5):
        (tmp_path / f"folder{number}").mkdir()
    runner = start_runner()

    def look() -> None:
        for number in range(MOST_TOLD + 5):
            list(os.walk(tmp_path / f"folder{number}"))

    runner.value(look)
    assert len(runner.output("stderr").splitlines()) == MOST_TOLD


def test_a_denial_that_is_not_ours_stays_as_it_is(tmp_path: Path) -> None:
    config = {"read_paths": ["/usr"], "write_paths": [str(tmp_path / "w")]}
    bounds = rules.bounds(config, "/kit", {"files": "landlock"})
    free = rules.bounds(config, "/kit", {"files": ""})

    def hint(path: str | None, bounds: hints.Bounds = bounds) -> str:
        return hints.add("no", PermissionError(13, "no", path), bounds)

    assert hint(str(tmp_path / "mine")).startswith("no. Jobs see only their own folder")
    assert hint(str(tmp_path / "w" / "mine")) == "no"
    assert hint("/dev/null") == "no"
    assert hint("/dev/kvm").startswith("no. Jobs see only")
    assert hint(None) == "no"
    assert hint(str(tmp_path / "mine"), free) == "no"
    # Links are followed, as the kernel does.
    (tmp_path / "link").symlink_to(tmp_path / "w")
    assert hint(str(tmp_path / "link" / "mine")) == "no"


@needs_landlock
def test_what_a_job_needs_still_works(runner: Runner) -> None:
    def needs() -> str:
        import multiprocessing.shared_memory
        import sqlite3
        import tempfile

        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        with open("here", "w") as note:
            note.write("x")
        os.makedirs("a/b")
        os.rename("here", "a/b/there")
        open("/dev/null", "w").close()
        with open("/dev/urandom", "rb") as random, open("/dev/full", "rb"):
            assert any(random.read(16))
        with open("/dev/stdout", "w") as again:
            again.write("to the log")
        memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
        memory.close()
        memory.unlink()
        sqlite3.connect("own.db").execute("create table t (x)").connection.close()
        return subprocess.check_output(
            ["sh", "-c", "ls /proc/self/fd > /dev/null && echo fine"], text=True
        )

    assert runner.value(needs) == "fine\n"


@needs_landlock
def test_terminals_consoles_and_disks_are_out_of_reach(runner: Runner) -> None:
    """A job that opens the terminal of its user reads the passwords that are typed there."""
    master, terminal = os.openpty()
    names = ("console", "tty0", "tty1", "vcs", "vcsa", "mem", "kmsg", "loop0", "sda", "vda")
    others = [*(f"/dev/{name}" for name in names), *glob.glob("/dev/input/event*")]

    def opened(*paths: str) -> list[str]:
        found = []
        for path in paths:
            for flag in (os.O_RDONLY, os.O_WRONLY):
                with contextlib.suppress(OSError):
                    os.close(os.open(path, flag | os.O_NOCTTY | os.O_NONBLOCK))
                    found.append(path)
        return found

    path = os.ttyname(terminal)
    try:
        assert runner.failure(os.open, path, os.O_RDWR)["type"] == "PermissionError"
        assert runner.value(opened, path, *others) == []
        assert os.path.basename(path) in runner.value(os.listdir, "/dev/pts")
    finally:
        os.close(master)
        os.close(terminal)


@needs_landlock
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_root_makes_no_device_of_its_own(runner: Runner) -> None:
    def console() -> None:
        os.mknod("console", stat.S_IFCHR | 0o600, os.makedev(5, 1))

    assert runner.failure(console)["type"] == "PermissionError"


@needs_landlock
def test_a_device_that_the_settings_name_can_be_used(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    """Terminals too, for a worker that has none that matter."""

    def own_terminal() -> bool:
        _, terminal = os.openpty()
        return os.isatty(terminal)

    own = str(tmp_path / "runner0")
    runner = start_runner(write_paths=[own, "/dev/ptmx", "/dev/pts"])
    assert runner.value(own_terminal)
    runner = start_runner(write_paths=[str(tmp_path / "runner1")])
    assert runner.failure(own_terminal)["type"] in ("PermissionError", "OSError")


def test_only_rights_that_the_kernel_knows_are_named() -> None:
    known = [rules.known_rights(version) for version in range(1, 8)]
    assert known == [0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF, 0xFFFF, 0xFFFF]


def test_without_isolation_nothing_is_claimed(
    start_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    (tmp_path / "open").write_text("open")
    runner = start_runner(isolate=False)
    assert runner.ready["enforced"]["files"] == ""
    assert runner.value(lambda: (tmp_path / "open").read_text()) == "open"


@pytest.mark.skipif(rules.landlock_version() < 6, reason="this kernel scopes no sockets")
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_abstract_sockets_stay_inside(runner: Runner, kind: socket.SocketKind) -> None:
    """Those of others are out of reach, its own are not."""

    def bound(name: bytes) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, kind)
        made.bind(name)
        if kind == socket.SOCK_STREAM:
            made.listen()
        return made

    def reach(name: bytes) -> bool:
        with socket.socket(socket.AF_UNIX, kind) as line:
            line.connect(name)
            return line.send(b"hello") == 5

    def reach_own(name: bytes) -> bool:
        with bound(name):
            return reach(name)

    name = f"\0corral-test-{os.getpid()}-{kind:d}".encode()
    with bound(name):
        assert reach(name)
        assert runner.failure(lambda: reach(name))["type"] == "PermissionError"
        assert runner.value(lambda: reach_own(name + b"-own"))


@pytest.mark.skipif(rules.landlock_version() < 6, reason="this kernel scopes no signals")
def test_a_job_cannot_signal_its_supervisor(runner: Runner) -> None:
    pid = runner.process.pid
    assert runner.failure(lambda: os.kill(pid, signal.SIGKILL))["type"] == "PermissionError"
    assert runner.value(lambda: os.kill(os.getpid(), 0)) is None


@needs_landlock
def test_a_job_changes_no_limits_of_others(runner: Runner) -> None:
    """A second of processor time would be the death of a controller, and none of a job's."""

    def bound(pid: int) -> object:
        return resource.prlimit(pid, resource.RLIMIT_CPU, (600, 600))

    agent = os.getpid()
    assert runner.failure(lambda: bound(os.getppid()))["type"] == "PermissionError"
    assert runner.failure(lambda: bound(agent))["type"] == "PermissionError"
    assert runner.value(lambda: resource.prlimit(agent, resource.RLIMIT_CPU)) == (-1, -1)
    assert runner.value(lambda: bound(0)) == (-1, -1)


ADD_KEY, KEYCTL = posix.KEYCTL.get(os.uname().machine, 2) - 2, posix.KEYCTL.get(os.uname().machine)
SESSION_KEYRING, USER_KEYRING = -3, -4
UNLINK, SEARCH = 9, 10


def find_key(keyring: int, name: bytes) -> int:
    """As programs of a session find what its login left for them; its number, -1 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(KEYCTL, SEARCH, keyring, b"user", name, 0))


@pytest.fixture(params=[SESSION_KEYRING, USER_KEYRING])
def a_key(request: pytest.FixtureRequest) -> Iterator[tuple[int, bytes]]:
    name = f"corral-test-{os.getpid()}".encode()
    number = posix.libc.syscall(ADD_KEY, b"user", name, b"hidden", 6, request.param)
    if number < 0:
        pytest.skip("this kernel keeps no keys")
    yield request.param, name
    posix.libc.syscall(KEYCTL, UNLINK, number, request.param)


@needs_landlock
def test_a_job_finds_no_keys_of_its_user(a_key: tuple[int, bytes], runner: Runner) -> None:
    assert find_key(*a_key) > 0
    assert runner.value(find_key, *a_key) == -1


def test_a_session_left_is_a_session_without_its_keys(a_key: tuple[int, bytes]) -> None:
    """What the kernel itself looks for there, on behalf of a job, is not filtered."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if posix.leave_session_keyring() and find_key(*a_key) < 0 else 1)
    found = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    assert found is (a_key[0] == USER_KEYRING)


def test_limits_and_privileges(start_runner: Callable[..., Runner]) -> None:
    cpu = min(os.sched_getaffinity(0))
    runner = start_runner(limits={"memory_bytes": 1 << 30, "cpus": [cpu]})
    assert runner.ready["enforced"] | {"files": ""} == {
        "files": "",
        "memory": "rlimit_data",
        "cpu": "affinity",
        "privileges": "no_new_privs",
    }

    def look() -> tuple[object, ...]:
        with open("/proc/self/status") as file:
            privileges = next(line.split()[1] for line in file if line.startswith("NoNewPrivs"))
        return (
            os.sched_getaffinity(0),
            resource.getrlimit(resource.RLIMIT_DATA),
            resource.getrlimit(resource.RLIMIT_CORE),
            privileges,
        )

    assert runner.value(look) == ({cpu}, (1 << 30, 1 << 30), (0, 0), "1")


def test_the_pid_told_is_the_one_the_agent_started(runner: Runner) -> None:
    assert runner.ready["pid"] == runner.process.pid


def test_a_job_cannot_end_its_supervisor_by_what_they_share(runner: Runner) -> None:
    """Memory that is cut away under whoever looks at it next would kill that process."""

    def cut() -> int:
        refused = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                shared = "memfd:" in os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # that of the listing itself
                continue
            if shared and os.fstat(int(name)).st_size:
                try:
                    os.ftruncate(int(name), 0)
                except PermissionError:
                    refused += 1
        return refused

    assert runner.value(cut) > 0
    assert runner.value(os.getpid)


SLOW_TO_LOAD = {"dataclasses", "enum", "functools", "json", "re", "signal", "typing"}


def test_the_way_to_the_fork_loads_little(kit: Path) -> None:
    """Every new runner waits for it."""
    asked = f"import sys; sys.path[0] = {str(kit)!r}; import corral.runtime.sandbox.start as start"
    told = f"{asked}; assert start.KIT == sys.path[0]; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", told], check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "corral.runtime.sandbox.rules" in loaded
    assert not loaded & SLOW_TO_LOAD
