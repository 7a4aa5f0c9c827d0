"""The sandbox under attack: every script of the corpus ends as a typed outcome, in time, and leaves nothing behind."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.environments.sandbox import child
from engine.environments.sandbox.command import INSTALL, require_bubblewrap
from engine.environments.sandbox.memory_group import parent_of_groups
from engine.environments.sandbox.outcome import (
    Finished,
    Killed,
    Limits,
    OutOfMemory,
    Refused,
    TimedOut,
)
from engine.environments.sandbox.python_tree import PACKAGES, python_tree
from engine.environments.sandbox.run import run_python
from tests.engine.environments.sandboxed import (
    CORPUS,
    Bound,
    marked,
    outcome_of,
    sandbox,
    still_running,
    wait_for_the_end_of,
)

__all__ = ["sandbox"]
ROOT = Path(__file__).parents[3]
# Attacks that only a timeout ends run without a control group in test_sandbox_bounds.py, several at once.
CASES = [
    *((attack, "group") for attack in CORPUS if parent_of_groups() is not None),
    *((attack, "alone") for attack in CORPUS if outcome_of(attack, "alone") != "TimedOut"),
]
WALL_S = 0.8  # of its own time
LONG_S = 30.0  # long enough for a script that ends by itself, even if a busy machine starts it late
needs_sandbox = pytest.mark.usefixtures("sandbox")


def limits_of_attack(wall_s: float = WALL_S) -> Limits:
    return marked(wall_s=wall_s, memory_bytes=128 << 20)


@pytest.mark.sandbox
@needs_sandbox
@pytest.mark.parametrize(("attack", "bound"), CASES, ids=lambda value: getattr(value, "stem", value))
def test_attack_ends_as_expected_outcome_without_leftovers(
    attack: Path, bound: Bound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_SECRET", "swordfish")
    if bound == "alone":
        monkeypatch.setattr(child, "parent_of_groups", lambda: None)
    expected = outcome_of(attack, bound)
    limits = limits_of_attack(WALL_S if expected == "TimedOut" else LONG_S)
    outcome = run_python(attack.read_text(), limits=limits)
    assert type(outcome).__name__ == expected, outcome
    assert not isinstance(outcome, Refused)
    assert "ESCAPED" not in outcome.output.stdout and "swordfish" not in outcome.output.stdout
    if isinstance(outcome, Finished):
        assert outcome.exit_code == 0 and "blocked" in outcome.output.stdout, outcome
    wait_for_the_end_of(limits)


@pytest.mark.sandbox
@needs_sandbox
def test_bombs_do_not_affect_other_sandboxes() -> None:
    bombs = [path.read_text() for path in CORPUS if path.stem in ("fork_bomb", "memory_bomb", "output_flood")]
    with ThreadPoolExecutor() as threads:
        bombing = [threads.submit(run_python, bomb, limits=limits_of_attack()) for bomb in bombs]
        good = [run_python("print(6 * 7)") for _ in range(3)]
        assert not any(isinstance(bomb.result(), Finished | Refused) for bomb in bombing)
    assert [outcome.output.stdout for outcome in good if isinstance(outcome, Finished)] == ["42\n"] * 3


@pytest.mark.sandbox
@needs_sandbox
def test_script_gets_input_and_files_and_returns_exit_code() -> None:
    code = "import sys\nprint(input(), open('/box/data.txt').read())\nprint('why', file=sys.stderr)\nsys.exit(3)"
    outcome = run_python(code, stdin="17\n", files={"data.txt": "grüße"})
    assert isinstance(outcome, Finished) and outcome.exit_code == 3
    assert (outcome.output.stdout, outcome.output.stderr) == ("17 grüße\n", "why\n")


@pytest.mark.sandbox
@needs_sandbox
def test_long_output_is_truncated_and_flagged() -> None:
    outcome = run_python("print('x' * 200_000)", limits=Limits(output_bytes=10_000))
    assert isinstance(outcome, Finished)
    assert len(outcome.output.stdout) == 10_000 and outcome.output.stdout_truncated
    assert not outcome.output.stderr_truncated


@pytest.mark.long
@pytest.mark.sandbox
@needs_sandbox
def test_processor_time_is_bounded_apart_from_the_wall_clock() -> None:
    outcome = run_python("while True: pass", limits=Limits(wall_s=30, cpu_s=1))
    assert isinstance(outcome, TimedOut) and outcome.clock == "cpu"


@pytest.mark.sandbox
@needs_sandbox
def test_unread_input_does_not_block() -> None:
    assert isinstance(run_python("print('done')", stdin="x" * 1_000_000), Finished)


@pytest.mark.sandbox
@needs_sandbox
def test_memory_error_has_its_own_outcome() -> None:
    assert isinstance(run_python("bytearray(1 << 40)"), OutOfMemory)
    assert isinstance(run_python("raise ValueError"), Finished)
    assert isinstance(run_python("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"), Killed)


@pytest.mark.sandbox
@needs_sandbox
def test_the_engines_death_ends_its_sandboxes() -> None:
    limits = marked(wall_s=600)
    code = (
        "from engine.environments.sandbox.child import Child\n"
        "from engine.environments.sandbox.outcome import Limits\n"
        "from engine.environments.sandbox.watch import Deadline\n"
        "script = 'import time; print(1, flush=True); time.sleep(600)'\n"
        f"child = Child(files={{'main.py': script}}, limits=Limits(disk_bytes={limits.disk_bytes}))\n"
        "child.pump(lambda: child.has_printed, Deadline(60))\n"
        "print('started', flush=True)\n"
        "child.pump(lambda: False, Deadline(600))"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "started\n"
    assert len(still_running(limits)) >= 2
    engine.kill()
    engine.communicate()
    wait_for_the_end_of(limits)


def test_missing_files_of_a_package_record_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two distributions may claim one file, and pip removes it with either."""
    info = tmp_path / "ghost-1.0.dist-info"
    (tmp_path / "ghost").mkdir()
    info.mkdir()
    (tmp_path / "ghost" / "__init__.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (info / "RECORD").write_text("LICENSE,,\nghost/__init__.py,,\nghost-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    python_tree.cache_clear()
    bound = {bind.target for bind in python_tree(("ghost",)).binds if bind.target.startswith(PACKAGES)}
    assert bound == {f"{PACKAGES}/ghost", f"{PACKAGES}/ghost-1.0.dist-info"}


def test_package_of_an_older_pip_is_found_by_its_file_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "ghost-1.0.egg-info"
    info.mkdir()
    (tmp_path / "ghost.py").touch()
    (tmp_path / "LICENSE").touch()  # another package's
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (info / "SOURCES.txt").write_text("LICENSE\nsetup.py\n")
    (info / "installed-files.txt").write_text(
        "../../../../bin/ghost\n../__pycache__/ghost.pyc\n../ghost.py\nPKG-INFO\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    python_tree.cache_clear()
    bound = {bind.target for bind in python_tree(("ghost",)).binds if bind.target.startswith(PACKAGES)}
    assert bound == {f"{PACKAGES}/ghost.py"}


def test_refusal_without_bubblewrap_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=INSTALL):
        require_bubblewrap()
    ran = tmp_path / "ran"
    outcome = run_python(f"open({str(ran)!r}, 'w')")
    assert isinstance(outcome, Refused) and INSTALL in outcome.reason
    assert not ran.exists()


def test_bubblewrap_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tmp_path.chmod(0o755)
    outcome = run_python("print(1)")
    assert isinstance(outcome, Refused) and outcome.reason
