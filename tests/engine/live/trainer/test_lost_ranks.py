"""Whole jobs of two ranks with faults at exact moments: a new trainer starts from the last checkpoint, and no sample is
lost or doubled. A rank out of memory ends the run instead, and is named."""

import errno
import os
import re
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.live.process.kernel_kills import HostUse
from engine.live.run import wiring
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.live.trainer.actor import TrainerActor
from engine.sinks.memory import MemorySink
from engine.spec.facts import CheckpointSaved, Evaluated, FactBody, FaultDetected, RunFinished, StepTrained
from engine.spec.job import JobSpec
from engine.training.checkpoint.folder import verify_checkpoint
from tests.engine.live.conftest import actor_processes
from tests.engine.live.trainer.test_ranks import BACKENDS

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.usefixtures("own_ray")]

PROMPTS, GROUP, STEPS, SAVED_EVERY = 4, 4, 12, 2
# The faults ("blows") in order, with the first step that each may hit. The last one hits the last checkpoint.
BLOWS = {"forward": 3, "full disk": 4, "gather": 5, "update": 7, "handover": 9, "saving": STEPS}
# Marker files: a blow waits until the driver has received these reports, which the dead trainer would no longer send.
SAVED, REPORTED = "saved", "reported"
# A rank's death closes its connections. A longer wait would be a wait for a collective's timeout, 600 s.
REPORTED_WITHIN_S = 60.0
ROOM = 64 * 2**20

Plant = Callable[[Any], None]


def spec_of(backend: str, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "struck",
            "training": {"steps": STEPS, "prompts_per_step": PROMPTS, "checkpoint_every": SAVED_EVERY},
            "algorithm": {"group_size": GROUP},
            "trainer": {"backend": backend, **BACKENDS[backend]},
            "resources": {"trainer_devices": 2},
            "rollout": {"replicas": 1, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            "schedule": {"max_staleness": 1_000},
            **fields,
        }
    )


def doomed(plant: Plant) -> type[TrainerActor]:
    """A trainer whose rank 1 gets the fault. A local class, so that Ray pickles it by value."""

    class DoomedTrainerActor(TrainerActor):
        def _maker(self, folder: Path) -> Any:
            return partial(planted, super()._maker(folder), plant)

    return DoomedTrainerActor


def planted(make: Callable[..., Any], plant: Plant, **place: Any) -> Any:
    trainer = make(**place)
    if place["world"].index == 1:
        plant(trainer)
    return trainer


# Killed ------------------------------------------------------------------------------------------------------------


def strike_in_turn(marks: Path, trainer: Any) -> None:
    """Strikes with each blow once."""
    from tests.engine.training.ranks.doom import strike_at

    train_step, prepare_save, write = trainer.train_step, trainer.prepare_save, trainer.published.write

    def trained(*arguments: Any) -> Any:
        for phase in ("forward", "gather", "update"):
            if is_due(trainer, phase, marks, step=steps_done(trainer) + 1):
                strike_at(phase, trainer, partial(die, marks, phase))
        return train_step(*arguments)

    def published(*arguments: Any) -> Any:
        sums = write(*arguments)  # this rank's bytes are written, and not reported yet
        if is_due(trainer, "handover", marks):
            die(marks, "handover")
        return sums

    def prepared(folder: Path) -> Any:
        act = prepare_save(folder)
        if is_due(trainer, "full disk", marks):
            (marks / "full disk").touch()
            return partial(on_a_full_disk, act)
        return (lambda: die(marks, "saving")) if is_due(trainer, "saving", marks) else act

    trainer.train_step, trainer.prepare_save, trainer.published.write = trained, prepared, published


def steps_done(trainer: Any) -> int:
    """The job's steps so far: each is one update here."""
    return int(trainer._progress.num_updates + trainer._progress.num_skipped)


def is_due(trainer: Any, blow: str, marks: Path, *, step: int | None = None) -> bool:
    """`step`: the step that the blow would hit; None: the last finished one."""
    before = [*BLOWS][: [*BLOWS].index(blow)]
    reports = [SAVED, *([REPORTED] if "full disk" in before else [])]
    is_its_turn = all((marks / each).exists() for each in (*before, *reports)) and not (marks / blow).exists()
    return is_its_turn and (steps_done(trainer) if step is None else step) >= BLOWS[blow]


def die(marks: Path, phase: str) -> None:
    from tests.engine.training.ranks.doom import kill_this_process

    (marks / phase).write_text(f"{time.time()}")
    kill_this_process()


def on_a_full_disk(act: Callable[[], Any]) -> Any:
    from engine.training.checkpoint import rank_share

    def refuse(*_: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_share, "write_tensors", refuse)
        return act()


class Witness(MemorySink):
    """Notes, at every death, the newest complete checkpoint, and later where the next trainer starts."""

    def __init__(self, marks: Path, checkpoints: Path) -> None:
        super().__init__()
        self._marks, self._checkpoints, self._fallen = marks, checkpoints, set[str]()
        self.waited_s: dict[str, float] = {}
        self.went_back: list[tuple[int, int]] = []
        """The newest complete checkpoint at a death, and the one that the next trainer starts from."""
        self._newest = 0
        self._next_step: int | None = None

    def record(self, body: FactBody) -> None:
        super().record(body)
        match body:
            case CheckpointSaved():
                (self._marks / SAVED).touch()
            case StepTrained():
                assert self._next_step in (None, body.step)
                self._next_step = None
            case FaultDetected(component="trainer", message=message):
                self._on_fault(message)

    def _on_fault(self, message: str) -> None:
        if message.startswith("checkpoint of step"):
            (self._marks / REPORTED).touch()
        elif "RankFailed" in message:
            self._newest = max(map(step_of, whole_ones(self._checkpoints)))
            self._note_waiting()
        elif message.startswith("a new trainer resumed"):
            begun = int(message.split()[-1])
            verify_checkpoint(self._checkpoints / f"step-{begun:06d}")
            self.went_back.append((self._newest, begun))
            self._next_step = begun + 1

    def _note_waiting(self) -> None:
        for blow in BLOWS.keys() - self._fallen - {"full disk"}:
            if (self._marks / blow).exists():
                self._fallen.add(blow)
                self.waited_s[blow] = time.time() - float((self._marks / blow).read_text())

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def whole_ones(checkpoints: Path) -> list[Path]:
    """Complete checkpoints: the manifest of data's progress is written last."""
    return [progress.parent.parent for progress in checkpoints.glob("step-*/*/manifest.json")]


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def run(job: JobSpec, checkpoints: Path, sink: MemorySink) -> RunFinished:
    return Attempt(AttemptPlan(spec=job, checkpoints=checkpoints), sink).run(lambda: None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_kills_and_full_disk_cost_only_steps(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, checkpoints = tmp_path / "marks", tmp_path / "checkpoints"
    marks.mkdir()
    monkeypatch.setattr(wiring, "TrainerActor", doomed(partial(strike_in_turn, marks)))
    sink = Witness(marks, checkpoints)
    finished = run(spec_of(backend), checkpoints, sink)
    assert finished.outcome == "succeeded", finished.message
    assert BLOWS.keys() <= {mark.name for mark in marks.iterdir()}, "a blow did not strike"
    assert finished.ledger["trained"] == STEPS * PROMPTS * GROUP
    assert finished.ledger["open"] == finished.ledger["failed"] == finished.ledger["dropped_stale"] == 0
    assert {body.version for body in sink.of(Evaluated)} == {0, STEPS}
    trained = [body.step for body in sink.of(StepTrained)]
    assert sorted(set(trained)) == list(range(1, STEPS + 1)) and trained[-1] == STEPS
    messages = [body.message for body in sink.of(FaultDetected) if body.component == "trainer"]
    (disk,) = [message for message in messages if message.startswith("checkpoint of step")]
    assert "was not written: rank 1: OSError" in disk
    deaths = [message for message in messages if "RankFailed" in message]
    assert len(deaths) == len(BLOWS) - 1 and all("rank 1: its process has died" in message for message in deaths)
    assert len(sink.went_back) == len(deaths)
    # The dead trainer's writer may have completed a checkpoint since.
    assert all(newest <= begun for newest, begun in sink.went_back), sink.went_back
    assert sink.waited_s.keys() == BLOWS.keys() - {"full disk"}
    assert all(waited_s < REPORTED_WITHIN_S for waited_s in sink.waited_s.values()), sink.waited_s
    for whole in whole_ones(checkpoints):
        verify_checkpoint(whole)


# Too large ---------------------------------------------------------------------------------------------------------


def tighten(trainer: Any) -> None:
    """Limits memory in the first step; later ones reuse what the allocator keeps. Ray keeps enough for its report."""
    train_step, before = trainer.train_step, resource.getrlimit(resource.RLIMIT_AS)

    def trained(*arguments: Any) -> Any:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, before[1]))
        try:
            return train_step(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    trainer.train_step = trained


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_out_of_memory_ends_run_with_rank_batch_and_remedy(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "TrainerActor", doomed(tighten))
    # Each rank passes over 1,024 answers of some 25 tokens; autograd keeps 13 kB for each token: 300 MB.
    job = spec_of(
        backend,
        training={"steps": 4, "prompts_per_step": 64},
        algorithm={"group_size": 32},
        rollout={"replicas": 1, "max_batch": 128, "max_new_tokens": 100},
        trainer={"micro_batch_tokens": 65_536, "activations": "kept", "backend": backend, **BACKENDS[backend]},
    )
    sink = MemorySink()
    finished = run(job, tmp_path / "checkpoints", sink)
    assert (finished.outcome, finished.failure_class) == ("failed", "memory"), finished.message
    cause, *lines = finished.message.splitlines()
    assert cause.startswith("trainer ran out of memory (rank 1: ") and "in a micro-batch of " in cause
    assert "It needs up to" in cause and "needs less if you" in cause and any("gradients" in line for line in lines)
    assert not [body for body in sink.bodies if isinstance(body, FaultDetected) and body.component == "trainer"]


# Killed by the kernel ----------------------------------------------------------------------------------------------

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_group() -> Any:
    """A control group whose processes the kernel kills above a memory limit."""
    group = MEMORY_GROUPS / f"laminar-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this needs root and the first version of control groups")
    yield group
    for task in (group / "cgroup.procs").read_text().split():
        (MEMORY_GROUPS / "cgroup.procs").write_text(task)
    group.rmdir()


class Confining(MemorySink):
    """After the first step, limits a process of the run to the memory that it has."""

    def __init__(self, group: Path, kind: str) -> None:
        super().__init__()
        self._group, self._kind, self._is_done = group, kind, False

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and not self._is_done:
            self._is_done = True
            (self._group / "memory.limit_in_bytes").write_text(f"{2**20}")
            (self._group / "cgroup.procs").write_text(f"{actor_processes(self._kind)[0].pid}")


@pytest.mark.parametrize(
    ("kind", "devices", "reason"),
    [
        ("TrainerActor", 1, "the kernel killed its process: its host was out of memory"),
        ("TrainerRankActor", 2, "(rank 1: its process has died, its host ran out of memory"),
    ],
)
def test_kernel_kill_for_memory_ends_the_run_as_out_of_memory(
    kind: str, devices: int, reason: str, small_group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostUse, "explains_a_full_host", True)
    sink = Confining(small_group, kind)
    training = {"steps": 1_000, "prompts_per_step": 32}
    job = spec_of("torch", resources={"trainer_devices": devices}, training=training)
    finished = run(job, tmp_path / "checkpoints", sink)
    assert (finished.outcome, finished.failure_class) == ("failed", "memory"), finished.message
    cause = finished.message.splitlines()[0]
    assert cause.startswith("trainer ran out of memory (") and reason in cause and "needs less if you" in cause
    assert not [body for body in sink.bodies if isinstance(body, FaultDetected) and body.component == "trainer"]


@pytest.mark.long
def test_part_killed_for_memory_that_others_took_is_replaced(small_group: Path, tmp_path: Path) -> None:
    sink = Confining(small_group, "TrainerActor")
    finished = run(spec_of("torch", training={"steps": 6}), tmp_path / "checkpoints", sink)
    assert finished.outcome == "succeeded", finished.message
    fault = next(body for body in sink.bodies if isinstance(body, FaultDetected) and body.component == "trainer")
    assert re.search(r"out of memory; this job held .* GB of its .* GB, so something else took it", fault.message)
