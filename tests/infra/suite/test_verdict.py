"""A run's verdict on planted faults: pytest really runs, on a small suite of its own, without a site."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infra.suite import results
from infra.suite import verdict as verdicts
from infra.suite.commands import OVER_BUDGET
from infra.suite.groups import HEAVY_GROUP, group_of
from infra.suite.results import Result
from infra.suite.verdict import Run, Verdict, judge

SETTINGS = """[pytest]
addopts = -q -p infra.suite.plugin -p no:django -p no:asyncio -p no:cacheprovider
timeout_func_only = false
faulthandler_exit_on_timeout = true
markers =
    long
    long_except
    proof
    soak
    ray
"""
BURN = """
import time
def burn():
    until = time.process_time() + 0.5
    while time.process_time() < until: pass
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Run(
        suite="gate", words=[], scale=1, folder=tmp_path / "records", environment=environment,
        started_at=time.monotonic(), options=(), num_workers=1,
    )  # fmt: skip


def judged(run: Run, **files: str) -> Verdict:
    run.folder.mkdir()
    for name, text in files.items():
        Path(f"test_{name}.py").write_text(f"import os, pathlib, pytest, signal, time\n{text}\n")
    return judge(run)


@pytest.mark.long
def test_passing_tests_are_green_and_long_ones_left_out(run: Run) -> None:
    verdict = judged(
        run,
        a="""
@pytest.mark.long
def test_left_out(): raise AssertionError
@pytest.mark.long_except("2")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_cell(number): assert number == 2
@pytest.mark.long_except("test_stays")
class TestClass:
    def test_stays(self): pass
    def test_left_out(self): raise AssertionError
""",
    )
    assert verdict.red == [] and verdict.unsteady == []
    names = {row.nodeid for row in verdict.tests}
    assert names == {"test_a.py::test_cell[2]", "test_a.py::TestClass::test_stays"}


@pytest.mark.proof
def test_two_failures_are_red_and_a_pass_alone_is_unsteady(run: Run) -> None:
    verdict = judged(
        run,
        a="""
def test_red(): raise AssertionError("planted")
def test_unsteady():
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only the first time")
""",
    )
    assert verdict.red == ["test_a.py::test_red"]
    assert [row.nodeid for row in verdict.unsteady] == ["test_a.py::test_unsteady"]
    assert "only the first time" in verdict.unsteady[0].reason


@pytest.mark.long
def test_dead_worker_is_red_by_name_and_the_rest_runs(run: Run) -> None:
    verdict = judged(run, dies="def test_dies(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_lives(): pass")
    assert verdict.red == ["pytest broke off with exit code -9", "test_dies.py::test_dies"]
    assert {row.nodeid: row.outcome for row in verdict.tests}["test_dies.py::test_lives"] == "passed"


@pytest.mark.proof
def test_run_goes_on_after_a_worker_that_died_late(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead worker's finished files must not be assigned again."""
    monkeypatch.setitem(verdicts.BUDGET_S, "gate", 60)
    monkeypatch.setattr(verdicts, "LEAST_S", 60)
    passing = {f"fine_{n}": "@pytest.mark.parametrize('n', range(4))\ndef test_fine(n): pass" for n in range(6)}
    verdict = judged(
        run, **passing, dies="def test_dies(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_lives(): pass"
    )
    assert verdict.red == ["pytest broke off with exit code -9", "test_dies.py::test_dies"]
    assert sum(row.outcome == "passed" for row in verdict.tests) == 25


@pytest.mark.long
def test_broken_import_ends_the_run_by_name(run: Run) -> None:
    verdict = judged(run, broken="import nothing_of_this_name", other="def test_fine(): pass")
    assert "test_broken.py" in verdict.red
    assert [row.nodeid for row in verdict.tests] == ["test_broken.py"], "no other test ran"


@pytest.mark.long
def test_a_test_that_hangs_is_red_by_name(run: Run) -> None:
    verdict = judged(run, hangs="@pytest.mark.timeout(1)\ndef test_hangs(): time.sleep(3600)")
    assert verdict.red == ["test_hangs.py::test_hangs"]
    assert "Timeout" in verdict.tests[0].reason


@pytest.mark.parametrize(("scale", "minutes"), [(1.0, 40), (1.5, 60), (3.7, 75)])
def test_budget_of_a_run_follows_the_hosts_speed(run: Run, scale: float, minutes: int) -> None:
    assert replace(run, scale=scale).budget_s == minutes * 60


@pytest.mark.long
def test_a_run_over_budget_names_its_tests_and_leaves_no_process(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(verdicts.BUDGET_S, "gate", 0)
    monkeypatch.setattr(verdicts, "LEAST_S", 20)
    verdict = judged(
        run,
        hangs="""
@pytest.mark.timeout(0)
def test_hangs():
    child = os.posix_spawn("/bin/sleep", ["sleep", "3600"], os.environ, setsid=True)
    pathlib.Path("child").write_text(str(child))
    time.sleep(3600)
""",
    )
    said = capfd.readouterr()
    assert "the run exceeded its time budget" in verdict.red
    assert "test_hangs.py::test_hangs" in said.out and "test_hangs.py" in said.err
    assert not Path(f"/proc/{Path('child').read_text()}").exists()


@pytest.mark.long
def test_slow_test_is_named_and_one_that_burns_cpu_is_red(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SLOW_AFTER_S", 0.05)
    monkeypatch.setattr(results, "TOO_SLOW_CPU_S", 0.3)
    Path("heavy.py").write_text(BURN + "burn()")
    verdict = judged(
        run,
        a=BURN
        + """
def test_burns(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    burn()
def test_sleeps(): time.sleep(0.5)
def test_pays_for_an_import(): import heavy
@pytest.fixture(scope="module")
def burned(): burn()
def test_pays_for_the_module(burned): pass
def test_slow_beside_others():
    seen = pathlib.Path("slow")
    if not seen.exists():
        seen.touch()
        time.sleep(0.4)
@pytest.mark.proof
def test_proof(): time.sleep(0.4)
@pytest.fixture(scope="session")
def shared(): time.sleep(0.4)
def test_pays_for_the_session(shared): pass
def test_runs_only_once(tmp_path_factory):
    seen = tmp_path_factory.getbasetemp() / "seen"
    assert not seen.exists()
    seen.touch()
    time.sleep(0.4)
""",
    )
    assert verdict.red == ["test_a.py::test_burns"]
    assert [row.nodeid for row in verdict.unsteady] == ["test_a.py::test_runs_only_once"]
    assert "mark it long" in verdict.reasons["test_a.py::test_burns"]
    assert {row.nodeid for row in verdict.slow} == {"test_a.py::test_burns", "test_a.py::test_sleeps"}


def test_budget_that_ends_while_slow_tests_are_timed_is_green(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test that was in progress was ended by the budget, and did not fail."""
    slow = Result(nodeid="test_a.py::test_slow", outcome="passed", seconds=10 * results.SLOW_AFTER_S)
    calls = {"all": (0, [slow]), "slow": (OVER_BUDGET, [replace(slow, outcome="failed")])}
    monkeypatch.setattr(Run, "pytest", lambda self, name, arguments, **more: calls[name])
    verdict = judge(run)
    assert verdict.red == [] and verdict.unsteady == [] and verdict.slow == []


def test_heavy_files_share_a_group_and_others_have_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_ray.py").write_text("@pytest.mark.ray\ndef test_a(): pass")
    (tmp_path / "test_site.py").write_text("pytestmark = pytest.mark.site")
    (tmp_path / "test_light.py").write_text("# no mark")
    groups = [group_of(f"{name}.py::test_a", tmp_path) for name in ("test_ray", "test_site", "test_light")]
    assert groups == [HEAVY_GROUP, HEAVY_GROUP, "test_light.py"]


def test_at_most_25_proofs_stay_in_the_gate() -> None:
    texts = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)]
    assert 0 < sum(text.count("@pytest.mark.proof") for text in texts) <= 25
