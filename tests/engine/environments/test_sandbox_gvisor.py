"""gVisor in place of bubblewrap, where an operator chooses it. Tests that need runsc are skipped without it."""

import os
import shutil
from pathlib import Path

import pytest

from engine.environments.sandbox.gvisor import INSTALL
from engine.environments.sandbox.memory_group import parent_of_groups
from engine.environments.sandbox.outcome import Finished, Limits, OutOfMemory, Refused, TimedOut
from engine.environments.sandbox.run import run_python
from engine.environments.sandbox.worker import WorkerPool
from tests.engine.environments.sandboxed import CORPUS, marked, outcome_of, sandbox, wait_for_the_end_of

__all__ = ["sandbox"]
# The other attacks are about Linux's own memory and namespaces: inside, both are gVisor's, bounded by its memory.
ATTACKS = [
    attack
    for attack in CORPUS
    if attack.stem.startswith(("closes", "crash", "disk", "infinite", "leaves", "long", "memory", "output", "sleeps"))
    or attack.stem.startswith(("sparse", "stops", "swallows", "thread", "writes"))
]


@pytest.fixture
def gvisor(sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("runsc") is None:
        pytest.skip(f"gVisor is not installed here (runsc): {INSTALL}")
    if parent_of_groups() is None:
        pytest.skip("gVisor needs a control group for each sandbox, and none can be made here")
    monkeypatch.setenv("LAMINAR_SANDBOX", "gvisor")


@pytest.mark.usefixtures("gvisor")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
def test_attack_in_gvisor_ends_as_expected_without_leftovers(attack: Path) -> None:
    expected = outcome_of(attack, "group")
    limits = marked(wall_s=3.0 if expected == "TimedOut" else 60.0, memory_bytes=128 << 20)
    outcome = run_python(attack.read_text(), limits=limits)
    assert type(outcome).__name__ == expected, outcome
    assert not isinstance(outcome, Refused) and "ESCAPED" not in outcome.output.stdout
    assert not isinstance(outcome, Finished) or "blocked" in outcome.output.stdout
    wait_for_the_end_of(limits)


@pytest.mark.usefixtures("gvisor")
def test_gvisor_shows_its_own_kernel_and_nothing_of_this_machine() -> None:
    code = (
        "import os, pathlib\n"
        "print(os.path.exists('/etc'), os.path.exists('/root'), os.path.exists('/home'), os.getuid())\n"
        "print(pathlib.Path('/proc/version').read_text())\n"
        "print([name for name in os.listdir('/proc') if name.isdigit()])"
    )
    outcome = run_python(code, limits=Limits(wall_s=60))
    assert isinstance(outcome, Finished), outcome
    seen, version, processes = (line for line in outcome.output.stdout.splitlines() if line)
    assert seen == "False False False 65534" and processes == "['1']"
    assert os.uname().release not in version


@pytest.mark.usefixtures("gvisor")
@pytest.mark.parametrize("forks", [False, True], ids=["warm", "copies"])
def test_warm_process_in_gvisor_answers_until_it_is_ended(forks: bool) -> None:
    code = "import time\ndef f(x):\n    return x * 2\ndef nap():\n    time.sleep(100)"
    workers = WorkerPool(files={"main.py": code}, limits=marked(), forks=forks)
    assert [workers.call("f", n, deadline_s=60) for n in range(3)] == [0, 2, 4]
    with pytest.raises(Exception, match="did not answer in time") as caught:
        workers.call("nap", deadline_s=0.5)
    assert isinstance(getattr(caught.value, "outcome", None), TimedOut)
    assert workers.call("f", 21, deadline_s=60) == 42


@pytest.mark.usefixtures("gvisor")
def test_the_memory_of_gvisor_itself_counts() -> None:
    hoards = "import os\nfor n in range(40):\n    os.write(os.memfd_create(str(n)), bytes(8 << 20))"
    assert isinstance(run_python(hoards, limits=Limits(memory_bytes=128 << 20, wall_s=60)), OutOfMemory)


def test_missing_runsc_is_refused_without_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\ntouch ran\n")
    bwrap.chmod(0o755)
    ldd = shutil.which("ldd")
    assert ldd is not None
    (tmp_path / "ldd").symlink_to(ldd)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LAMINAR_SANDBOX", "gvisor")
    outcome = run_python("print(1)")
    assert isinstance(outcome, Refused) and "runsc" in outcome.reason and INSTALL in outcome.reason
    assert not (tmp_path / "ran").exists()


def test_unknown_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINAR_SANDBOX", "chroot")
    outcome = run_python("print(1)")
    assert isinstance(outcome, Refused)
    assert "LAMINAR_SANDBOX" in outcome.reason and "gvisor" in outcome.reason and "'chroot'" in outcome.reason
