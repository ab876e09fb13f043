"""Rules of the whole suite: skips, what was deselected and why, and a real controller."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.live import LiveController

NOT_HERE = ("gpu", "windows")
"""Markers of what no CI machine has: deselected, and counted in the summary."""

_deselected: Counter[str] = Counter()


def _fail_skips() -> bool:
    return os.environ.get("CORRAL_TEST_ALL") == "1"


def _failed(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{reason} (CORRAL_TEST_ALL=1: nothing may be skipped here)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _fail_skips():
        _failed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and _fail_skips():
        _failed(report)
    return report


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        _deselected.update(name for name in NOT_HERE if item.get_closest_marker(name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = ", ".join(f"{_deselected[name]} {name}" for name in NOT_HERE)
    terminalreporter.write_line(f"deselected for what this machine lacks: {counts}")


@pytest.fixture(scope="session")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """One embedded controller for every test that only needs some controller."""
    home: Path = tmp_path_factory.mktemp("home")
    with LiveController(home) as started:
        yield started
