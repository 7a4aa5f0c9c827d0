"""A test run leaves nothing: ended by a signal it removes its site itself, killed it leaves that to the next run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.local.processes import RUN_MARKER, processes_of_run

pytestmark = [pytest.mark.site, pytest.mark.long]
WITHIN_S = 240.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Runs of this test see each other's folders and no other run's."""
    short = Path(f"/tmp/run-{os.getpid()}-{time.monotonic_ns()}")  # a Unix socket's path is short
    short.mkdir()
    return {**os.environ, "TMPDIR": str(short), RUN_MARKER: str(tmp_path)}


def begin(environment: dict[str, str], *command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "infra.local.testing", "--", *command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def begun(environment: dict[str, str]) -> tuple[subprocess.Popen[str], Path]:
    run = begin(environment, "sh", "-c", f"echo ${RUN_MARKER}; exec sleep 3600")
    assert run.stdout is not None
    return run, Path(run.stdout.readline().strip())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_of_an_ended_run_is_left(environment: dict[str, str], how: signal.Signals) -> None:
    run, folder = begun(environment)
    assert folder.is_dir() and processes_of_run(str(folder))
    run.send_signal(how)
    run.wait(WITHIN_S)
    if how == signal.SIGKILL:
        assert folder.is_dir(), "a killed process removes nothing"
        assert begin(environment, "true").wait(WITHIN_S) == 0
    assert processes_of_run(str(folder)) == []
    assert list(Path(environment["TMPDIR"]).iterdir()) == []
    Path(environment["TMPDIR"]).rmdir()


def test_a_run_removes_no_other_that_is_alive(environment: dict[str, str]) -> None:
    run, folder = begun(environment)
    assert begin(environment, "true").wait(WITHIN_S) == 0
    assert folder.is_dir() and processes_of_run(str(folder))
    run.terminate()
    run.wait(WITHIN_S)
    Path(environment["TMPDIR"]).rmdir()
