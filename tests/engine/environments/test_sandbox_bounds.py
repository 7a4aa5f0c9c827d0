"""Limits that the kernel enforces on a sandbox: with and without a control group, of root and of an ordinary user."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from engine.environments.gym import ReasoningGym
from engine.environments.port import Turn, Verdict
from engine.environments.sandbox import child
from engine.environments.sandbox.memory_group import JOINS, MemoryGroup, parent_of_groups
from engine.environments.sandbox.outcome import Finished, Limits, OutOfMemory
from engine.environments.sandbox.python_tree import python_tree
from engine.environments.sandbox.run import run_python
from engine.environments.sandbox.starting import ROOM_FOR_LIBRARIES
from engine.environments.sandbox.worker import WorkerPool
from tests.engine.environments.sandboxed import CORPUS, copy_for_anybody, marked, outcome_of, sandbox
from tests.waiting import eventually

__all__ = ["sandbox"]
pytestmark = pytest.mark.usefixtures("sandbox")
in_ci_too = pytest.mark.sandbox  # the other tests are skipped without control groups or without root
ROOT = Path(__file__).parents[3]
KERNELS_BYTES: Final = 64 << 20
"""In addition to address space and files: page tables (16 MiB), pipes and sockets, threads, the outer processes."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "parent_of_groups", lambda: None)


ATTACKS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from engine.environments.sandbox import child
from engine.environments.sandbox.outcome import Limits
from engine.environments.sandbox.run import run_python
from engine.environments.sandbox.starting import ROOM_FOR_LIBRARIES
child.parent_of_groups = lambda: None
order = json.load(sys.stdin)
def run(code, wall_s):
    outcome = run_python(code, limits=Limits(wall_s=wall_s, **order["limits"]))
    return type(outcome).__name__, outcome.output.stdout if hasattr(outcome, "output") else str(outcome)
with ThreadPoolExecutor(order["at_once"]) as threads:
    json.dump(list(threads.map(run, order["scripts"], order["walls"])), sys.stdout)
"""


def attacked(attacks: list[Path], *before: str, at_once: int = 1, python: str = sys.executable, **where: Any) -> Any:
    """The outcomes of attacks run by a process without control groups. `before`: the start of its command line."""
    walls = [1.0 if outcome_of(attack, "alone") == "TimedOut" else 30.0 for attack in attacks]
    order = {
        "limits": {"memory_bytes": 128 << 20, "disk_bytes": 16 << 20},
        "at_once": at_once,
        "scripts": [attack.read_text() for attack in attacks],
        "walls": walls,
    }
    done = subprocess.run(
        [*before, python, "-c", ATTACKS], input=json.dumps(order), capture_output=True, text=True, **where
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@in_ci_too
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="another user needs a Python that it may read")
def test_ordinary_user_without_control_group_is_as_confined(tmp_path: Path) -> None:
    """Under root the sandbox has a user of its own; here the engine itself runs as an ordinary user."""
    somebody: dict[str, Any] = {"user": 0x5FFFFFFF, "group": 0x5FFFFFFF, "extra_groups": []}
    copy_for_anybody(tmp_path)
    outcomes = attacked(
        CORPUS,
        at_once=4,
        python="/usr/bin/python3",
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        **(somebody if os.geteuid() == 0 else {}),
    )
    for attack, (outcome, printed) in zip(CORPUS, outcomes, strict=True):
        assert outcome == outcome_of(attack, "alone"), (attack.stem, printed)
        assert "ESCAPED" not in printed and (outcome != "Finished" or "blocked" in printed), (attack.stem, printed)


@in_ci_too
@pytest.mark.usefixtures("alone")
def test_sandbox_without_control_group_is_one_process() -> None:
    code = (
        "import asyncio, os, socket, sqlite3, threading\n"
        "try:\n    os.fork()\nexcept BlockingIOError:\n    print('alone')\n"
        "thread = threading.Thread(target=print, args=('thread',))\nthread.start()\nthread.join()\n"
        "print(asyncio.run(asyncio.sleep(0, 'loop')))\n"
        "with sqlite3.connect('/tmp/rows') as rows:\n    rows.execute('create table t (a)')\nprint('rows')"
    )
    outcome = run_python(code)
    assert isinstance(outcome, Finished) and outcome.output.stdout.split() == ["alone", "thread", "loop", "rows"]


@in_ci_too
@pytest.mark.usefixtures("alone")
def test_byte_range_locks_without_control_group_take_no_memory() -> None:
    code = (
        "import fcntl, struct\n"
        "one, other = open('/tmp/file', 'w'), open('/tmp/file', 'w')\n"
        "fcntl.lockf(one, fcntl.LOCK_EX, 1, 10)\n"
        "lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)\n"
        "print(struct.unpack('hhqqi4x', fcntl.fcntl(other, 36, lock))[0] == fcntl.F_UNLCK)"
    )
    outcome = run_python(code)
    assert isinstance(outcome, Finished) and outcome.output.stdout == "True\n", outcome


@in_ci_too
@pytest.mark.usefixtures("alone")
def test_call_without_control_group_has_exactly_one_process() -> None:
    code = "import os\nn = 0\ndef f():\n    global n\n    n += 1\n    return n\ndef g():\n    os.fork()\n"
    workers = WorkerPool(files={"main.py": code}, limits=marked(), forks=True)
    assert [workers.call("f", deadline_s=20) for _ in range(3)] == [1, 1, 1]
    with pytest.raises(Exception, match="BlockingIOError"):
        workers.call("g", deadline_s=20)


@pytest.mark.long
@in_ci_too
@pytest.mark.usefixtures("alone")
def test_heaviest_judge_works_without_control_group() -> None:
    gym = ReasoningGym(seed=1, task="chain_sum", params={}, timeout_s=60.0)
    prompt = gym.prompt("train", 0)
    verdict = gym.respond(prompt, [Turn(text="no number")])
    assert prompt.text and isinstance(verdict, Verdict) and verdict.reward < 1


HUNGRY = [
    attack
    for attack in CORPUS
    if attack.stem.startswith(("memory", "socket", "pipe", "page", "many", "hidden", "kernel", "thread", "disk"))
]


@pytest.mark.long
@pytest.mark.skipif(parent_of_groups() is None, reason="no control group can be made here to measure with")
def test_memory_of_attacks_is_bounded_without_control_group() -> None:
    """Measured by a control group that limits nothing."""
    nothing = next(attack for attack in CORPUS if attack.stem == "long_output")
    most = Limits(memory_bytes=128 << 20).memory_bytes + ROOM_FOR_LIBRARIES + (16 << 20) + KERNELS_BYTES
    assert len(HUNGRY) > 10
    assert peak_of([*HUNGRY]) - peak_of([nothing]) < most


def peak_of(attacks: list[Path]) -> int:
    parent = parent_of_groups()
    assert parent is not None
    group = MemoryGroup(parent, limit_bytes=64 << 30)
    try:
        attacked(attacks, "sh", "-c", JOINS, "sh", str(group.folder), cwd=ROOT)
        return int((group.folder / ("memory.peak" if parent.is_v2 else "memory.max_usage_in_bytes")).read_text())
    finally:
        group.remove()


@pytest.fixture
def groups() -> Iterator[None]:
    parent = parent_of_groups()
    if parent is None:
        pytest.skip("no control group can be made here: the address space bounds the sandbox instead")
    ours = f"laminar-sandbox-{os.getpid()}-*"
    before = {*parent.folder.glob(ours)}  # groups of judges that stay warm
    yield

    def left() -> set[Path]:
        groups = {*parent.folder.glob(ours)} - before
        if groups:  # the kernel takes its time to empty them
            MemoryGroup(parent, limit_bytes=1 << 30).remove()
        return groups

    eventually(left, "each group is removed with its sandbox", until=lambda groups: not groups)


HOLDS = {
    "pages": "kept = [bytearray(8 << 20) for _ in range(20)]",
    "files": "for number in range(160): open(f'/tmp/{number}', 'wb').write(bytes(1 << 20))",
    "sockets": """
pairs = [socket.socketpair() for _ in range(800)]
for end, _ in pairs:
    end.setblocking(False)
    try:
        while True:
            end.send(bytes(1 << 16))
    except BlockingIOError:
        pass
""",
}


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("held", HOLDS.values(), ids=HOLDS.keys())
def test_control_group_counts_all_memory_of_the_tree(held: str) -> None:
    limits = Limits(memory_bytes=128 << 20, disk_bytes=256 << 20, num_open_files=2_000, wall_s=30)
    assert isinstance(run_python(f"import socket\n{held}\nprint('ESCAPED')", limits=limits), OutOfMemory)


@in_ci_too
def test_sandbox_writes_nothing_next_to_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "ghost-1.0.dist-info"
    (tmp_path / "ghost").mkdir()
    info.mkdir()
    (tmp_path / "ghost" / "__init__.py").write_text("answer = 42\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ghost\nVersion: 1.0\n")
    (info / "RECORD").write_text("ghost/__init__.py,,\nghost-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    python_tree.cache_clear()
    before = sorted(tmp_path.rglob("*"))
    code = (
        "import os, ghost\ndef f():\n    try: os.mkdir('/packages/ghost/x')\n    except OSError: return ghost.answer\n"
    )
    workers = WorkerPool(files={"main.py": code}, limits=marked(), packages=("ghost",))
    assert workers.call("f", deadline_s=60) == 42
    assert sorted(tmp_path.rglob("*")) == before
