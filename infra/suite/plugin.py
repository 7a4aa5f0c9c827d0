"""The pytest plugin of every test run: order and grouping, timeouts, repeatable examples, a record of every result.

`pyproject.toml` loads it for pytest's controller and, through xdist, for every worker. The controller alone records.
"""

import contextlib
import faulthandler
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, TextIO, cast

import pytest
from _pytest.runner import runtestprotocol
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from infra.suite.groups import HEAVY_GROUP, HEAVY_MARKS, group_of, names_heavy_mark
from infra.suite.meter import Meter
from infra.suite.results import write_phase
from infra.suite.speed import scale

RECORD: Final = "LAMINAR_TEST_RECORD"
"""The file that takes one line for each phase of each test."""
LONG: Final = "LAMINAR_TEST_LONG"
"""Set for long runs: Hypothesis draws by chance there, and longer timeouts hold."""
WARM: Final = "LAMINAR_TEST_WARM"
"""Set where tests are timed: each runs once before it counts, so that it fills no caches that others use too."""
TIMEOUT_S: Final = 120.0
PROOF_TIMEOUT_S: Final = 240.0
LONG_TIMEOUT_S: Final = 900.0
RECORDED_MARKS: Final = frozenset({"long", "proof", "soak"})
NUM_CHARACTERS: Final = 4_000
COST: Final = "cost"
_METER: Final = Meter()
_STACKS: Final = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    stacks = config.stash[_STACKS] = os.fdopen(os.dup(2), "w")  # while a test runs, 2 itself is captured
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    from hypothesis import settings

    settings.register_profile("suite", deadline=None, derandomize=not os.environ.get(LONG), database=None)
    settings.load_profile("suite")
    _METER.exclude_imports()
    file = os.environ.get(RECORD)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(file)), "laminar-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marks = _mark_further_cells(item)
        _check_heavy_mark(item, marks)
        _set_timeout(item, marks)
        item.user_properties.append(("marks", sorted(marks & RECORDED_MARKS)))
    groups = {item: group_of(item.nodeid, item.config.rootpath) for item in items}
    num_tests = Counter(groups.values())
    items.sort(key=lambda item: _place_of(groups[item], num_tests))


def _place_of(group: str, num_tests: Counter[str]) -> tuple[bool, int, str]:
    """The heavy group first, then the files with the most tests."""
    return group != HEAVY_GROUP, -num_tests[group], group


def _mark_further_cells(item: pytest.Item) -> set[str]:
    """`@pytest.mark.long_except("name")`: of a parametrized test the named cells stay in the gate, of a class the named
    tests. Returns the names of all marks."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long_except" in marks:
        names = {name for mark in item.iter_markers("long_except") for name in mark.args}
        own = {getattr(item, "originalname", item.name), getattr(getattr(item, "callspec", None), "id", "")}
        if not names & own:
            item.add_marker("long")
            marks.add("long")
    return marks


def _check_heavy_mark(item: pytest.Item, marks: set[str]) -> None:
    heavy = marks & HEAVY_MARKS
    if heavy and not names_heavy_mark(item.path):
        raise pytest.UsageError(f"{item.nodeid} is marked {heavy}, which its own file does not name")


def _set_timeout(item: pytest.Item, marks: set[str]) -> None:
    if marks & {"timeout", "soak"}:
        return
    limit = TIMEOUT_S
    if "long" in marks:
        limit = LONG_TIMEOUT_S
    elif "proof" in marks:
        limit = PROOF_TIMEOUT_S
    item.add_marker(pytest.mark.timeout(limit * scale()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collects no garbage while imports and thousands of tests, which live until the end, are made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """After each file the garbage collector forgets what is still alive, such as libraries that its tests imported:
    DeepSpeed and others collect in every test, which took up to a second."""
    if os.environ.get(WARM) and isinstance(item, pytest.Function):
        # Its own fixtures end, those of its class and module stay; pytest reads nothing else of `nextitem`.
        runtestprotocol(item, log=False, nextitem=cast(pytest.Item, item.parent))
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _freeze()
    return result


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    with _METER.shared() if fixturedef.scope == "session" else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    _METER.lap()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    cost = _METER.lap()
    item.user_properties.append((COST, (cost.wall_s, cost.cpu_s)))  # the report of a later phase holds the earlier ones
    return (yield)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # `pytest_collection_modifyitems` has put them in order
    return GroupScheduling(config, log)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's scheduling by scope, where the scope is the group of `groups.py`."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, self.config.rootpath)

    def remove_node(self, node: WorkerController) -> str | None:
        """Marks the test that killed its worker as done: xdist would run it again in each new worker. Drops finished
        files: xdist would assign them again, and a worker that gets only finished files waits for ever."""
        unfinished = [
            (unit, nodeid)
            for unit in self.assigned_work[node].values()
            for nodeid, is_done in unit.items()
            if not is_done
        ]
        crashed: str | None = None
        if unfinished:
            unit, crashed = unfinished[0]
            unit[crashed] = True
        units = self.assigned_work[node].items()
        self.assigned_work[node] = {scope: unit for scope, unit in units if not all(unit.values())}
        super().remove_node(node)
        return crashed


class Recorder:
    """Records the reports that reach the controller; pytest can run a test again by its parametrized id.

    No test runs if a file cannot be imported: one broken module breaks many imports.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._has_broken_import = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        write_phase(self._file, nodeid=nodeid, when="start", outcome="started", seconds=0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        wall_s, cpu_s = properties.get(COST, (report.duration, 0.0))
        write_phase(
            self._file,
            nodeid=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=wall_s,
            cpu_s=cpu_s,
            marks=properties.get("marks", []),
            reason=_reason_of(report),
            load=os.getloadavg()[0],
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._has_broken_import = True
            reason = str(report.longrepr)[-NUM_CHARACTERS:]
            write_phase(self._file, nodeid=report.nodeid, when="teardown", outcome="failed", seconds=0.0, reason=reason)

    def pytest_xdist_node_collection_finished(self) -> None:
        if self._has_broken_import:
            raise pytest.Session.Interrupted("a file cannot be imported")


def _reason_of(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr or "")[-NUM_CHARACTERS:]
