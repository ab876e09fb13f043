"""Tables at every width, and numbers that programs read."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from corral.cli.terminal import output
from corral.cli.terminal.bar import render
from corral.contract.plain import rounded

ID = "1m7fbb7bm7d7azk"
COLUMNS = ("JOB", "STATE", "NAME", "CLASS", "TRY")
ROW = (ID, "succeeded", "a script with a long name", "interactive", "2")


@pytest.mark.parametrize("width", [60, 40, 30])
def test_ids_never_break(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.show_table(COLUMNS, [ROW], spare=("CLASS", "TRY"))
    shown = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert shown.splitlines()[1].startswith(ID)
    assert max(map(len, shown.splitlines())) <= width
    assert "CLASS" not in shown


def test_pipes_get_whole_lines_without_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    output.show_table(("JOB", "NAME", "TOOK"), [(ID, long, ""), (ID, "short", "")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{ID}  {long}"
    assert lines[2] == f"{ID}  short"
    assert len(lines) == 3


def test_times_are_rounded_and_nothing_else() -> None:
    found = {"seconds": 0.12345678, "jobs": [{"ended_at": 1.00000049, "loss": 1e-9}]}
    assert rounded(found) == {"seconds": 0.123457, "jobs": [{"ended_at": 1.0, "loss": 1e-9}]}


def test_words_of_others_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A pack from elsewhere is told of in warnings and errors, with its own words."""
    output.say("Left out: \x1b[2Jkey\x9b31m, \u202egnp.exe.\nMore.")
    assert capsys.readouterr().err == "Left out: \\x1b[2Jkey\\x9b31m, \\u202egnp.exe.\nMore.\n"


def test_json_steers_no_terminal_and_means_the_same() -> None:
    said = {"a": "ä \x9b2J \u202e \x1b"}
    assert output.as_json(said) == '{"a": "ä \\u009b2J \\u202e \\u001b"}'
    assert json.loads(output.as_json(said)) == said


def test_a_bar_shows_a_message_and_does_not_obey_it() -> None:
    shown = render(0.5, "\x1b]0;pwned\x07epoch\u202e 2\x9b2J", 80)
    assert shown.endswith("\\x1b]0;pwned\\x07epoch\\u202e 2\\x9b2J")
    assert shown.isprintable()


def test_commands_print_through_one_door() -> None:
    """What they print may be a job's word or a worker's: only `output` and the bar write."""
    folder = Path(output.__file__).parent
    found = [
        f"{path.name}:{node.lineno} {name}"
        for path in sorted(folder.glob("*.py"))
        if path.name not in ("output.py", "bar.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and (name := ast.unparse(node.func)) in ("print", "typer.echo", "sys.stdout.write")
    ]
    assert not found
