"""Scripts: packages unpacked safely, entries of both kinds, and how each end is told."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.runtime.failures import AttemptFailed
from corral.runtime.files import packages
from tests.eventually import eventually
from tests.runtime.conftest import StartRunner
from tests.runtime.harness import Controller, Frame, Runner, alive, zipped

IN_JOB = """
import sys
from pathlib import Path
from corral import job
job.progress(0.25, "script " + sys.argv[1])
job.metric(loss=0.5, step=2)
(job.output_dir() / "made.txt").write_text(job.id())
Path("side.txt").write_text("side")
job.artifact("side.txt")
print("argv", sys.argv[1:], open("data/in.txt").read(), job.attempt())
"""


FUNCTION_ENTRY = """
import sys
async def go():
    print("went", sys.argv)
class Tool:
    go = staticmethod(go)
"""

ASKING = """
from corral import job
job.cancelled()
print("asked")
while not job.cancelled():
    pass
print("bye")
"""


def test_a_script_finds_its_files_its_arguments_and_the_job(
    runner: Runner, controller: Controller
) -> None:
    files = {"main.py": IN_JOB, "data/in.txt": "input"}
    runner.start_script(files, argv=("one", "two words"))
    frame = runner.end()
    assert frame == {"frame": "result", "result": None, "retire": True}
    assert runner.output() == b"argv ['one', 'two words'] input 1\n"
    assert runner.kinds("progress")[0]["message"] == "script one"
    assert runner.kinds("metric")[0]["values"] == {"loss": 0.5}
    assert controller.artifacts == {"side.txt": b"side", "made.txt": b"job-1"}
    assert runner.gone() == 0


def test_an_entry_may_be_a_function_of_a_module(runner: Runner) -> None:
    code = FUNCTION_ENTRY
    runner.start_script(
        {"pkg/__init__.py": "", "pkg/cli.py": code}, "pkg.cli:Tool.go", argv=("-x",)
    )
    assert runner.end()["result"] is None
    assert runner.output() == b"went ['pkg.cli:Tool.go', '-x']\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("def main(): return None", 0),
        ("def main(): return 0", 0),
        ("def main(): return 3", 3),
        ("async def main(): return 3", 3),
        ("def main(): return 'it broke'", 1),
    ],
)
def test_what_an_entry_returns_is_its_exit_code(runner: Runner, code: str, exit_code: int) -> None:
    runner.start_script({"cli.py": code}, "cli:main")
    assert runner.end().get("failure", {}).get("exit_code", 0) == exit_code
    assert runner.output("stderr") == (b"it broke\n" if exit_code == 1 else b"")


def test_a_large_package_is_fetched(runner: Runner, controller: Controller) -> None:
    noise = os.urandom(200_000).hex()
    runner.start_script({"main.py": "print(len(open('noise').read()))", "noise": noise})
    assert runner.end()["frame"] == "result"
    assert runner.output() == b"400000\n"
    assert any("/packages/" in request for request in controller.requests)


@pytest.mark.parametrize(
    ("code", "failure", "exit_code"),
    [
        ("raise SystemExit(3)", "exit_code", 3),
        ("1/0", "exit_code", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed_by_signal", -11),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "killed_by_signal", -15),
        ("import os, signal; os.killpg(0, signal.SIGTERM)", "killed_by_signal", -15),
        ("import os; os.write(1, b'partial'); os._exit(0)", None, None),
        ("import os; os.close(1); os.close(2)", None, None),
    ],
)
def test_how_a_script_ends(
    runner: Runner, code: str, failure: str | None, exit_code: int | None
) -> None:
    runner.start_script({"main.py": code})
    frame = runner.end()
    assert frame["retire"]
    if failure is None:
        assert frame["frame"] == "result"
    else:
        assert frame["failure"]["code"] == failure
        assert frame["failure"]["exit_code"] == exit_code
    if "1/0" in code:
        assert b"ZeroDivisionError" in runner.output("stderr")


@pytest.mark.parametrize("entry", ["main.py", "main:go"])
def test_the_exception_that_ended_a_script_is_told(runner: Runner, entry: str) -> None:
    code = "def go():\n    raise LookupError('no such row')\nif __name__ == '__main__':\n    go()\n"
    runner.start_script({"main.py": code}, entry)
    failure = runner.end()["failure"]
    assert (failure["code"], failure["exit_code"]) == ("exit_code", 1)
    assert (failure["type"], failure["message"]) == ("LookupError", "no such row")
    assert "in go" in failure["traceback"]
    assert b"LookupError: no such row" in runner.output("stderr")


@pytest.mark.parametrize(
    ("code", "files", "entry", "said"),
    [
        ("import cv2", {}, "main.py", "to requirements=[…] (--with opencv-python-headless), or"),
        ("import sibling", {}, "main.py", "since only main.py was sent: corral run FOLDER --entry"),
        ("import sibling", {"data.txt": ""}, "main.py", "put it into the folder that is sent"),
        ("import sibling\ndef go(): pass", {}, "main:go", "put it into the folder that is sent"),
        ("import corral.no_such_part", {}, "main.py", "Jobs cannot submit jobs"),
        ("raise MemoryError", {}, "main.py", "The job ran out of memory: it had no limit"),
        ("import json.part", {}, "main.py", ""),
    ],
)
def test_a_script_is_told_what_to_do_as_a_function_is(
    runner: Runner, code: str, files: dict[str, str], entry: str, said: str
) -> None:
    runner.start_script({"main.py": code, **files}, entry)
    failure = runner.end()["failure"]
    assert said in failure["message"]
    assert failure["code"] == ("out_of_memory" if "MemoryError" in code else "exit_code")
    printed = runner.output("stderr").decode().splitlines()
    if said:
        assert printed[-1].startswith("corral: ")
        assert said in printed[-1]
    else:
        assert "requirements" not in failure["message"]
        assert [line for line in printed if line.startswith("corral: ")] == []


def test_only_the_script_itself_tells_its_end(runner: Runner) -> None:
    other = "import subprocess, sys\nsubprocess.call([sys.executable, '-c', '1/0'])\nsys.exit(1)"
    runner.start_script({"main.py": other})
    failure = runner.end()["failure"]
    assert failure["message"] == "The script exited with code 1."
    assert not failure.get("type")


@pytest.mark.parametrize(
    "written",
    ["", "[]", "{}", '{"message": 1, "type": "", "traceback": ""}', "{" * 100_000, "9" * 2_000_000],
    ids=lambda text: f"{text[:3]} {len(text)}",
)
def test_what_a_script_writes_there_itself_is_only_read(runner: Runner, written: str) -> None:
    code = (
        "import os, shutil, sys, tempfile\n"
        "shutil.copy('words', os.path.join(tempfile.gettempdir(), 'corral-script-error'))\n"
        "sys.exit(1)\n"
    )
    runner.start_script({"main.py": code, "words": written})
    assert runner.end()["failure"]["message"] == "The script exited with code 1."


def test_a_secret_in_its_exception_is_not_shown(start_runner: StartRunner) -> None:
    runner = start_runner(secrets={"TOKEN": "hunter2-hunter2"})
    runner.start_script({"main.py": "import os\nraise ValueError('with ' + os.environ['TOKEN'])"})
    failure = runner.end()["failure"]
    assert failure["type"] == "ValueError"
    assert "hunter2" not in str(failure)


def test_a_sitecustomize_of_the_environment_is_loaded_all_the_same(runner: Runner) -> None:
    code = (
        "import subprocess, sys, os\n"
        "os.makedirs('site')\n"
        "open('site/sitecustomize.py', 'w').write('print(\"customized\")')\n"
        "path = os.environ['PYTHONPATH'] + os.pathsep + os.path.abspath('site')\n"
        "subprocess.check_call([sys.executable, '-c', 'import sitecustomize'],"
        " env={**os.environ, 'PYTHONPATH': path})\n"
    )
    runner.start_script({"main.py": code})
    assert runner.end()["frame"] == "result"
    assert runner.output() == b"customized\n"


def test_output_of_a_script_streams_line_by_line(runner: Runner) -> None:
    os.mkfifo(fifo := runner.folder / "gate")
    runner.start_script({"main.py": f"print('first')\nopen({str(fifo)!r}).read()\nprint('second')"})
    assert runner.until("output")["text"].startswith("first")
    fifo.write_text("")
    runner.end()
    assert runner.output().endswith(b"second\n")


def test_a_daemon_of_a_script_does_not_outlive_it(runner: Runner) -> None:
    code = "import subprocess\nprint(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    runner.start_script({"main.py": code})
    assert runner.end()["frame"] == "result"
    pid = int(runner.output())
    assert runner.gone() == 0
    eventually(lambda: not alive(pid), "the daemon to end")


def test_a_cancelled_script_is_reported_after_its_end(runner: Runner) -> None:
    code = "import os, time; print(os.getpid()); time.sleep(60)"
    runner.start_script({"main.py": code})
    pid = int(runner.until("output")["text"].split()[0])
    runner.cancel()
    frame = runner.end()
    assert frame["failure"]["code"] == "cancelled"
    assert not alive(pid)
    assert runner.gone() == 0


def test_a_script_that_asks_ends_by_itself(runner: Runner) -> None:
    code = ASKING
    runner.start_script({"main.py": code})
    runner.until("output")
    runner.cancel()
    assert runner.end()["failure"]["code"] == "cancelled"
    assert runner.output().endswith(b"bye\n")


def test_the_user_s_own_python_path_is_kept(start_runner: Callable[..., Runner]) -> None:
    runner = start_runner(environ={"PYTHONPATH": "/somewhere/else"})
    runner.start_script({"main.py": "import sys; print(sys.path.index('/somewhere/else') > 0)"})
    runner.end()
    assert runner.output() == b"True\n"


# --- packages that nobody should make -------------------------------------------------------------


def odd_zip(name: str, mode: int = 0, text: str = "x") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, text)
    return held.getvalue()


def bad(runner: Runner, package: bytes, entry: str = "main.py") -> Frame:
    runner.start_work(
        {"type": "script", "package": runner.blob(package), "entry": entry, "argv": []}
    )
    frame = runner.end()
    assert frame["frame"] == "error"
    failure: Frame = frame["failure"]
    return failure


@pytest.mark.parametrize(
    ("package", "words"),
    [
        (odd_zip("../evil.py"), "outside"),
        (odd_zip("/evil.py"), "outside"),
        (odd_zip("a/../../evil.py"), "outside"),
        (odd_zip("C:\\evil.py"), "outside"),
        (odd_zip("link", stat.S_IFLNK | 0o777, "/etc/passwd"), "link"),
        (b"no zip at all", "not a readable zip"),
        (odd_zip("x" * 5000), "File name too long"),
        (odd_zip(f"{'x' * 99}/" * 50 + "y"), "File name too long"),
        (odd_zip("other.py"), "no file 'main.py' to run. At its top are: other.py"),
    ],
)
def test_bad_packages_are_refused(runner: Runner, package: bytes, words: str) -> None:
    failure = bad(runner, package)
    assert failure["code"] == "bad_package"
    assert words in failure["message"]
    # A walk passes over paths that are too long to be looked at.
    assert "evil.py" not in {name for _, _, names in os.walk(runner.folder) for name in names}


def test_an_entry_outside_of_the_package_is_refused(runner: Runner) -> None:
    assert bad(runner, odd_zip("main.py"), "../main.py")["code"] == "bad_package"


def test_a_package_that_was_damaged_on_its_way(runner: Runner, controller: Controller) -> None:
    sha256 = hashlib.sha256(b"the real one").hexdigest()
    controller.packages[sha256] = odd_zip("main.py")
    package = {"sha256": sha256, "size": 12}
    runner.start_work({"type": "script", "package": package, "entry": "main.py", "argv": []})
    assert runner.end()["failure"]["code"] == "transfer_failed"


def claiming(package: bytes, size: int) -> bytes:
    """The package with another size written over that of each entry."""
    claim = struct.pack("<I", size)
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        head, *entries = package.split(signature)
        at = offset - len(signature)
        entries = [entry[:at] + claim + entry[at + 4 :] for entry in entries]
        package = signature.join([head, *entries])
    return package


def test_a_bomb_is_refused_by_its_claim_before_anything_is_written(runner: Runner) -> None:
    names = [f"big{number}.bin" for number in range(3)]
    package = claiming(zipped(dict.fromkeys(names, "x")), 3_500_000_000)
    failure = bad(runner, package)
    assert failure["code"] == "bad_package"
    assert "unpacks to 10500000000 bytes; at most 8000000000" in failure["message"]
    assert not list(runner.folder.rglob("*.bin"))


def test_a_bomb_that_claims_little_gets_no_more_than_that(runner: Runner) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big.bin", bytes(50_000_000))
    failure = bad(runner, claiming(held.getvalue(), 1000))
    assert failure["code"] == "bad_package"
    assert all(path.stat().st_size <= 1000 for path in runner.folder.rglob("*.bin"))


def test_counts_are_bounded() -> None:
    entries = zipfile.ZipFile(io.BytesIO(odd_zip("a"))).infolist()
    with pytest.raises(AttemptFailed, match="files; at most"):
        packages._refuse(entries * 300_000)


def test_a_full_disk_is_not_the_package_s_doing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        packages.unpack(io.BytesIO(odd_zip("a")), str(tmp_path))


def test_executable_bits_survive(tmp_path: os.PathLike[str]) -> None:
    packages.unpack(io.BytesIO(odd_zip("bin/tool", 0o100755)), str(tmp_path))
    assert os.access(os.path.join(tmp_path, "bin", "tool"), os.X_OK)
    packages.unpack(io.BytesIO(odd_zip("plain")), str(tmp_path))
    assert not os.access(os.path.join(tmp_path, "plain"), os.X_OK) or sys.platform == "win32"
