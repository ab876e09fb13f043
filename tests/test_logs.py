"""Lines: their two forms, their bounds on disk, and what libraries say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, sys
from pathlib import Path
from corral import logs
import structlog
logs.configure(sys.argv[1], sys.argv[2], file=Path(sys.argv[3]), limit=200_000, rotates=True)
log = structlog.get_logger()
"""


def said(
    code: str, *, level: str = "info", form: str = "json", file: Path | None = None
) -> list[str]:
    """What a process says on stderr, which is the file where one is given."""
    command = [sys.executable, "-c", PROGRAM + code, level, form, str(file or "/nowhere")]
    if file is None:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
        return done.stderr.splitlines()
    with file.open("ab") as log:
        subprocess.run(command, stderr=log, check=True)
    return file.read_text("utf-8").splitlines()


def test_json_lines() -> None:
    (line,) = said("log.info('job_submitted', job='j1', at=Path('/x'), text='é\\n')")
    found = json.loads(line)
    stamp = found.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    assert found == {
        "level": "info",
        "event": "job_submitted",
        "job": "j1",
        "at": "/x",
        "text": "é\n",
    }


def test_console_lines() -> None:
    (line,) = said(
        "log.warning('odd', job='j1', error='two words', jobs=['a','b'])", form="console"
    )
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} warning  odd ", line)
    assert line.endswith("job=j1 error='two words' jobs=a,b")


def test_nothing_in_a_message_makes_a_second_line() -> None:
    (line,) = said("log.info('odd', error='a\\nlevel=error\\x1b[2J')", form="console")
    assert line.endswith(r"error='a\nlevel=error\x1b[2J'")


def test_the_level_is_kept_on_both_roads() -> None:
    code = "log.info('quiet'); logs.inform([{'event': 'quiet too'}]); log.error('loud')"
    assert [json.loads(line)["event"] for line in said(code, level="warning")] == ["loud"]
    assert [json.loads(line)["event"] for line in said(code)] == ["quiet", "quiet too", "loud"]


def test_many_lines_at_once() -> None:
    found = said("logs.inform([{'event': 'one', 'n': 1}, {'event': 'two', 'n': 2}])")
    assert [(json.loads(line)["event"], json.loads(line)["n"]) for line in found] == [
        ("one", 1),
        ("two", 2),
    ]


@pytest.mark.parametrize("form", ["json", "console"])
def test_exceptions_and_libraries(form: str) -> None:
    code = """
try:
    1 / 0
except ZeroDivisionError as error:
    log.error('broke', exc_info=error)
    logging.getLogger('asyncio').exception('it %s', 'failed')
logging.getLogger('urllib3').info('not said')
"""
    found = said(code, form=form)
    if form == "json":
        ours, library = map(json.loads, found)
        assert ours["exception"].endswith("ZeroDivisionError: division by zero\n")
        assert (library["event"], library["logger"]) == ("library_said", "asyncio")
        assert (library["message"], library["level"]) == ("it failed", "error")
    else:
        assert sum(line == "ZeroDivisionError: division by zero" for line in found) == 2
        assert not any("not said" in line for line in found)


def test_a_client_that_hangs_up_is_nobodys_mistake() -> None:
    """gRPC says so of each stream, with a traceback."""
    code = """
from grpc._cython import cygrpc
try:
    raise cygrpc.ExecuteBatchError('Failed "execute_batch"')
except Exception:
    logging.getLogger('grpc._cython.cygrpc').exception('raised in core by servicer method')
log.info('goes on')
"""
    (line,) = map(json.loads, said(code))
    assert line["event"] == "goes on"


def test_the_file_is_bounded_and_no_line_is_torn(tmp_path: Path) -> None:
    file = tmp_path / "controller.log"
    said("for n in range(5000): log.info('line', n=n, filler='x' * 100)", file=file)
    older = tmp_path / "controller.log.1"
    assert file.stat().st_size + older.stat().st_size < 2 * 200_000
    kept = older.read_text("utf-8").splitlines() + file.read_text("utf-8").splitlines()
    numbers = [json.loads(line)["n"] for line in kept]
    assert numbers == list(range(numbers[0], 5000))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "controller.log",
        "controller.log.1",
    ]


def test_who_does_not_rotate_follows(tmp_path: Path) -> None:
    file = tmp_path / "controller.log"
    code = """
import os
logs.configure('info', 'json', file=Path(sys.argv[3]))
os.rename(sys.argv[3], sys.argv[3] + '.moved')
Path(sys.argv[3]).touch()
for n in range(1000): log.info('line', n=n, filler='x' * 100)
"""
    assert json.loads(said(code, file=file)[-1])["n"] == 999
    moved = file.with_name("controller.log.moved").read_text("utf-8").splitlines()
    assert json.loads(moved[0])["n"] == 0


def test_a_full_disk_ends_nothing() -> None:
    command = [sys.executable, "-c", PROGRAM + "log.info('lost'); print('alive')"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*command, "info", "json", "/nowhere"], stderr=full, stdout=subprocess.PIPE, check=True
        )
    assert done.stdout == b"alive\n"
