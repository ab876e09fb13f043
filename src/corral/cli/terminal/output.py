"""How commands speak: data on stdout, sentences on stderr, both as JSON where `--json` asks.

An error is one sentence and an exit code; a traceback is nobody's answer.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from corral.core.errors import CorralError, InvalidJob, InvalidPlan
from corral.core.text import printable, printable_json
from corral.core.text import span as span

if TYPE_CHECKING:
    from corral.contract.views import QueueView

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
POLL_S = 0.05


class Commands(typer.Typer):
    """Commands that end with a sentence and an exit code, whatever they raise."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[F], F]:
        add = super().command(*args, **kwargs)
        return lambda command: add(_guarded(command))


def _guarded(command: F) -> F:
    @functools.wraps(command)
    def guard(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except CorralError as error:
            complain(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(2 if isinstance(error, InvalidJob | InvalidPlan) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of a pipe has enough; flushing at exit must not complain either.
            sys.stdout = None
            raise typer.Exit(141) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            told = str(error.strerror or error).removesuffix(".")  # ours are sentences already
            complain(CorralError(f"{place}{told}."), kwargs.get("as_json"))
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            where = _keep(traceback.format_exc())
            sentence = f"Corral stumbled over {type(error).__name__}: {error}. This is a mistake "
            complain(CorralError(f"{sentence}of ours; {where}."), kwargs.get("as_json"))
        raise typer.Exit(1)

    return cast("F", guard)


def complain(error: CorralError, as_json: object = False) -> None:
    if as_json:
        print(json.dumps(error.view()), file=sys.stderr)
    else:
        say(error.message, style="red")


def _keep(report: str) -> str:
    from corral import settings

    path = settings.default_home() / "log" / "cli.log"
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(report)
    except OSError:
        return f"its traceback could not be kept in {path}"
    return f"its traceback is in {path}"


def say(sentence: str, *, style: str = "", end: str = "\n") -> None:
    """A sentence for the person, on stderr. It may hold words of a plan, a pack or a worker."""
    sentence = printable(sentence)
    code = {"red": "31", "green": "32", "yellow": "33", "dim": "2"}.get(style, "")
    if code and sys.stderr.isatty():
        sentence = f"\x1b[{code}m{sentence}\x1b[0m"
    print(sentence, file=sys.stderr, end=end, flush=True)


def show_json(value: object) -> None:
    from corral.contract.plain import plain

    print(as_json(plain(value), indent=2))


def as_json(value: object, indent: int | None = None) -> str:
    """JSON as people read it, with what would steer a terminal escaped as JSON has it."""
    return printable_json(json.dumps(value, indent=indent, ensure_ascii=False))


def show(text: str = "", *, ours: str = "") -> None:
    """Text on stdout. Commands print in no other way, because any word may be a job's or a
    worker's; `ours` may have a colour. Only a job's own output goes through raw."""
    print(f"{ours}{printable(text)}", flush=True)


def answer(value: object, told: str | Iterable[str], as_json: bool) -> None:
    """What a command did, for a program or for a person: a sentence, or several lines."""
    if as_json:
        show_json(value)
        return
    for line in [told] if isinstance(told, str) else told:
        show(line)


def warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        say(sentence, style="yellow")


def show_json_line(value: object, indent: int | None = None) -> None:
    """JSON for whoever gets several documents, or one as it is."""
    print(as_json(value, indent), flush=True)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()
) -> None:
    """Shrinks to the terminal, `spare` columns first, the first one never. Pipes get it all."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = [tuple(map(printable, row)) for row in rows]
    room = terminal_width()
    kept = list(zip(columns, *listed, strict=True))
    for column in spare:
        if table_width(kept) > room:
            kept = [one for one in kept if one[0] != column]
    names, *lines = zip(*kept, strict=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name == columns[0])
    for row in lines:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console = Console(width=room, highlight=False)
    if sys.stdout.isatty():
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def show_list(
    found: Sequence[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    none: str,
    as_json: bool,
    spare: Sequence[str] = (),
) -> None:
    """What there is, for a program or for a person; a sentence where there is nothing."""
    if as_json:
        show_json(found)
    elif found:
        show_table(columns, map(row, found), spare=spare)
    else:
        say(none)


def waited(done: Callable[[], object], patience_s: float) -> bool:
    """Polls until it is done; False where `patience_s` was not enough."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def terminal_width() -> int:
    """Columns of the terminal; a pipe has as many as anybody needs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


def table_width(columns: Iterable[Sequence[str]]) -> int:
    return (
        sum(max(len(line) for cell in one for line in cell.split("\n")) + 2 for one in columns) - 2
    )


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one below the other; empty values are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        lines = printable(value).splitlines() or [""]
        show(f"{name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            show(f"{'':<{width}}  {line}")


STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "placed": "cyan",
    "stopping": "yellow",
    "failed": "red",
    "rejected": "red",
    "cancelled": "yellow",
}


def ago(at: float) -> str:
    return f"{span(max(time.time() - at, 0))} ago" if at else ""


def paused(queue: QueueView) -> str:
    by = f" by {queue.paused_by}" if queue.paused_by else ""
    return f"paused {ago(queue.paused_at)}{by}"
