"""The pytest plugin of every test run: order and grouping, timeouts, repeatable examples, a record of every result.

`pyproject.toml` loads it for pytest's controller and, through xdist, for every worker. The controller alone records.
"""

import faulthandler
import gc
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from infra.suite.groups import HEAVY_GROUP, HEAVY_MARKS, group_of, names_heavy_mark
from infra.suite.results import write_phase
from infra.suite.speed import scale

RECORD: Final = "LAMINAR_TEST_RECORD"
"""The file that takes one line for each phase of each test."""
LONG: Final = "LAMINAR_TEST_LONG"
"""Set for long runs: Hypothesis draws by chance there, and longer timeouts hold."""
TIMEOUT_S: Final = 60.0
PROOF_TIMEOUT_S: Final = 240.0
LONG_TIMEOUT_S: Final = 900.0
RECORDED_MARKS: Final = frozenset({"long", "proof", "soak"})
NUM_CHARACTERS: Final = 4_000


def pytest_configure(config: pytest.Config) -> None:
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True, chain=False)
    from hypothesis import settings

    settings.register_profile("suite", deadline=None, derandomize=not os.environ.get(LONG), database=None)
    settings.load_profile("suite")
    file = os.environ.get(RECORD)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file)), "laminar-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        _keep_gate_cell(item)
        _check_heavy_mark(item)
        _set_timeout(item)
        marks = {mark.name for mark in item.iter_markers()} & RECORDED_MARKS
        item.user_properties.append(("marks", sorted(marks)))
    num_tests = Counter(group_of(item.nodeid) for item in items)
    items.sort(key=lambda item: _place_of(group_of(item.nodeid), num_tests))


def _place_of(group: str, num_tests: Counter[str]) -> tuple[bool, int, str]:
    """The heavy group first, then the files with the most tests."""
    return group != HEAVY_GROUP, -num_tests[group], group


def _keep_gate_cell(item: pytest.Item) -> None:
    """`@pytest.mark.long(but="cell")`: of a parametrized test the named cells stay in the gate."""
    mark = next((mark for mark in item.own_markers if mark.name == "long"), None)
    if mark is None or "but" not in mark.kwargs:
        return
    kept = mark.kwargs["but"]
    cell = getattr(getattr(item, "callspec", None), "id", "")
    if cell in ([kept] if isinstance(kept, str) else kept):
        item.own_markers.remove(mark)


def _check_heavy_mark(item: pytest.Item) -> None:
    heavy = {mark.name for mark in item.iter_markers()} & HEAVY_MARKS
    if heavy and not names_heavy_mark(item.path):
        raise pytest.UsageError(f"{item.nodeid} is marked {heavy}, and its own file does not say so")


def _set_timeout(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") or item.get_closest_marker("soak"):
        return
    limit = TIMEOUT_S
    if item.get_closest_marker("long"):
        limit = LONG_TIMEOUT_S
    elif item.get_closest_marker("proof"):
        limit = PROOF_TIMEOUT_S
    item.add_marker(pytest.mark.timeout(limit * scale()))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Imports and thousands of collected tests live until the end: the collector need not walk them again and again."""
    gc.collect()
    gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # `pytest_collection_modifyitems` has put them in order
    return GroupScheduling(config, log)


class GroupScheduling(LoadScopeScheduling):
    """xdist's scheduling by scope, where the scope is the group of `groups.py`."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Recorder:
    """Writes what the controller hears of each test; a parametrized id is what pytest needs to run it again."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        write_phase(self._file, nodeid=nodeid, when="start", outcome="started", seconds=0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        write_phase(
            self._file,
            nodeid=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=report.duration,
            marks=dict(report.user_properties).get("marks", []),
            reason=_reason_of(report),
            load=os.getloadavg()[0],
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            reason = str(report.longrepr)[-NUM_CHARACTERS:]
            write_phase(self._file, nodeid=report.nodeid, when="teardown", outcome="failed", seconds=0.0, reason=reason)


def _reason_of(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr or "")[-NUM_CHARACTERS:]
