"""Support for tests that run code in the sandbox: skipped without one (in CI that is a failure); and a check for
processes left running."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import pytest

from engine.environments.sandbox.outcome import Limits, Refused
from engine.environments.sandbox.run import run_python
from tests.waiting import eventually

Bound = Literal["group", "alone"]
"""What bounds the memory: a control group, or the sandbox being a single process."""
CORPUS = sorted((Path(__file__).parent / "attack_corpus").glob("*.py"))

_NEXT = itertools.count(os.getpid() << 12)


def outcome_of(attack: Path, bound: Bound) -> str:
    """Reads the script's first line, such as `# expect: OutOfMemory, alone: Finished`."""
    with attack.open() as script:
        expected = script.readline().strip().removeprefix("# expect: ").split(", alone: ")
    return expected[-1] if bound == "alone" else expected[0]


@pytest.fixture(scope="session")
def sandbox() -> None:
    outcome = run_python("")
    if isinstance(outcome, Refused):
        pytest.skip(outcome.reason)


def copy_for_anybody(folder: Path) -> None:
    """Copies the sandbox's modules, readable for every user of this machine: the checkout may be in a closed home."""
    source, engine = folder / "engine" / "environments", Path(__file__).parents[3] / "engine"
    shutil.copytree(engine / "environments" / "sandbox", source / "sandbox")
    for module in ("process/thread_times.py", "spec/node_variables.py"):
        copy = source.parent / module
        copy.parent.mkdir()
        shutil.copy(engine / module, copy)
        (copy.parent / "__init__.py").touch()
    for each in (source.parent, source):
        (each / "__init__.py").touch()
    temporary = Path(tempfile.gettempdir())
    above = [each for each in folder.parents if temporary in each.parents]
    for each in (folder, *above):
        each.chmod(0o755)


def marked(**limits: float) -> Limits:
    """Limits unique to this run: the disk's size, in the command line of each process, identifies them."""
    return Limits(disk_bytes=(16 << 20) + next(_NEXT) % (1 << 20) * 4, **limits)  # type: ignore[arg-type]


def wait_for_the_end_of(limits: Limits) -> None:
    """The kernel takes some time to remove killed processes."""
    what = "every process of the sandbox has ended"
    eventually(lambda: still_running(limits), what, until=lambda commands: not commands)


def still_running(limits: Limits) -> list[str]:
    mark = str(limits.disk_bytes).encode()
    commands = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it ended meanwhile
            continue
        if mark in command:
            commands.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return commands
