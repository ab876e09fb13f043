"""Every setting, error, failure, fact and command is documented, and nothing else is."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
from typer.main import get_command

from corral.core import errors, events, failures
from corral.settings import Settings, keys, value_of, variable
from tests.docs.pages import blocks, headings, pages, rows, section


def _commands() -> dict[str, Any]:
    from corral.cli.main import build

    found: dict[str, Any] = {}
    group: Any = get_command(build())
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        found |= (
            {f"{name} {word}": one for word, one in below.items()} if below else {name: command}
        )
    return found


def test_settings() -> None:
    found = rows("docs/settings.md")
    known = {key for key, _ in keys()}
    assert set(found) == known
    for key in known:
        assert found[key][1] == variable(key)
        shown = msgspec.json.encode(value_of(Settings(), key)).decode()
        assert found[key][2].replace(",", "") == shown, f"the default of {key}"
        assert len(found[key][4]) > 5, f"why anybody would set {key}"


def test_errors() -> None:
    found = {code: cells for code, cells in rows("docs/errors.md").items() if cells[1].isdigit()}
    assert set(found) == set(errors.BY_CODE)
    for code, cells in found.items():
        assert int(cells[1]) == errors.BY_CODE[code].status, code
        assert errors.BY_CODE[code].__name__ in cells[2], code


def test_failures() -> None:
    classes = {kind.value for kind in failures.FailureClass}
    found = {code: cells for code, cells in rows("docs/errors.md").items() if cells[1] in classes}
    assert {code: cells[1] for code, cells in found.items()} == {
        code: kind.value for code, kind in failures.CLASSES.items()
    }


def test_facts() -> None:
    kinds = [*get_args(events.Journaled), *get_args(events.EngineReport)]
    assert set(rows("docs/facts.md")) == {kind.__name__ for kind in kinds}


def test_commands_and_their_options() -> None:
    known = _commands()
    assert set(headings("docs/cli.md", 2)) == {f"corral {name}" for name in known}
    for name, command in known.items():
        body = section("docs/cli.md", f"corral {name}")
        options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--help"}
        missing = sorted(option for option in options if f"`{option}" not in body)
        assert not missing, f"docs/cli.md, corral {name}: {missing}"


def test_shown_commands_exist() -> None:
    known = {name.split()[0] for name in _commands()} | {
        "--help",
        "--version",
        "--install-completion",
    }
    for page in pages():
        for block in blocks(page):
            if block.kind == "console":
                for word in re.findall(r"^\$ (?:\w+=\S+ )*corral (\S+)", block.text, re.MULTILINE):
                    assert word in known, f"{page}:{block.line}: corral {word}"
