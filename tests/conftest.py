"""Rules of the whole suite: skips, what was deselected and why, what runs beside what, and a real
controller."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.beside import Beside, longest_first
from tests.live import LiveController

NOT_HERE = ("gpu", "windows")
"""Markers of what no CI machine has: deselected, and counted in the summary."""

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile(
    "any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")

_deselected: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="what is skipped has failed")


def _failed(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{reason} (--no-skips: nothing may be skipped here)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.option.no_skips:
        _failed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and collector.config.option.no_skips:
        _failed(report)
    return report


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        _deselected.update(name for name in NOT_HERE if item.get_closest_marker(name))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = dict(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each of several processes deselected the same; one that crashed tells nothing."""
    for name, count in getattr(node, "workeroutput", {}).get("deselected", {}).items():
        _deselected[name] = count


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Beside:
    config.option.loadscopereorder = False
    return Beside(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    often = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if often:  # what hands tests out to several processes counts by name, and would run one of them
        raise pytest.UsageError(f"Several tests have one name each: {', '.join(often)}")
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, line in report.user_properties:
            if name == "covered":
                terminalreporter.write_line(f"crash: {line}")
    counts = ", ".join(f"{_deselected[name]} {name}" for name in NOT_HERE)
    terminalreporter.write_line(f"deselected for what this machine lacks: {counts}")


@pytest.fixture(autouse=True, scope="session")
def nothing_left_open() -> Iterator[None]:
    """Before pytest's own last look, whose finds are lost in a process of several."""
    yield
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def left_as_found(nothing_left_open: None) -> Iterator[None]:
    """What a file left open fails there, not in whichever file the collector comes by in; and what
    it did to the logs ends with it."""
    logs, root = structlog.get_config(), logging.getLogger()
    handlers = list(root.handlers)
    yield
    structlog.configure(**logs)
    for added in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(added)
    gc.collect()


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """One embedded controller for every test that only needs some controller."""
    home: Path = tmp_path_factory.mktemp("home")
    with LiveController(home) as started:
        yield started
