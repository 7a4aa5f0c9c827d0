"""pytest as a child process with a time budget.

Invariants:
- a run that exceeds its budget prints the stacks of all its Python processes and names the tests in progress;
- whatever way a run ends, no process that it started is left: each carries the run's marker in its environment.
"""

import contextlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from infra.local.processes import RUN_MARKER, end, processes_of_run
from infra.suite.results import running_tests

STACKS_WITHIN_S: Final = 5.0
ENDS_WITHIN_S: Final = 20.0
OVER_BUDGET: Final = 124


def run_pytest(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    record: Path,
    last_resort_s: float,
    budget_s: float,
) -> int:
    """The exit code of pytest, or `OVER_BUDGET`. A single phase of a test ends its process after `last_resort_s`."""
    run = f"{environment.get(RUN_MARKER, '')}/{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "pytest", "-o", f"faulthandler_timeout={last_resort_s:.0f}", *arguments]
    process = subprocess.Popen(command, env={**environment, RUN_MARKER: run}, start_new_session=True)
    try:
        return process.wait(timeout=budget_s)
    except subprocess.TimeoutExpired:
        _print_stacks(process)
        print(f"\nThe tests exceeded {budget_s / 60:.0f} minutes. In progress:", flush=True)
        for nodeid in running_tests(record):
            print(f"  {nodeid}", flush=True)
        return OVER_BUDGET
    finally:
        end(processes_of_run(run), grace_s=ENDS_WITHIN_S)


def _print_stacks(pytest: subprocess.Popen[bytes]) -> None:
    """The plugin has every pytest process print its threads on this signal."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pytest.pid)
        for process in [parent, *parent.children()]:
            with contextlib.suppress(psutil.Error):
                if _is_pytest(process):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_WITHIN_S)


def _is_pytest(process: psutil.Process) -> bool:
    """pytest itself, or a worker of xdist, which reads its program from its standard input."""
    command = " ".join(process.cmdline())
    return "-m pytest" in command or "sys.stdin.readline" in command
