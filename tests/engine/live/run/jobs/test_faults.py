"""Any part of a running job may be killed or frozen at any moment: the run continues, and the ledger adds up."""

import os
import random
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.policy.recovery import Patience
from engine.spec.checkpoint_manifest import MANIFEST_FILE, PROGRESS_FOLDER
from engine.spec.facts import CheckpointSaved, Evaluated, FaultDetected, RunFinished, StepTrained
from engine.spec.job import JobSpec
from tests.engine.live.process.starving import starved
from tests.engine.live.run.jobs.blows import Blows
from tests.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

PROMPTS, GROUP = 4, 4
ProcessesOf = Callable[[str], list[Any]]


def spec(*, steps: int, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "faults",
            "training": {"steps": steps, "prompts_per_step": PROMPTS, "checkpoint_every": 4},
            "algorithm": {"group_size": GROUP},
            "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            **fields,
        }
    )


def run(job: JobSpec, folder: Path, sink: Blows, **plan_fields: Any) -> RunFinished:
    plan = AttemptPlan(spec=job, checkpoints=folder / "checkpoints", **plan_fields)
    return Attempt(plan, sink).run(lambda: None)


def adds_up(finished: RunFinished, sink: Blows, *, steps: int) -> None:
    assert finished.outcome == "succeeded", finished.message
    assert finished.ledger["trained"] == steps * PROMPTS * GROUP
    assert finished.ledger["open"] == 0 and finished.ledger["failed"] == 0
    evaluated = [body.version for body in sink.of(Evaluated)]
    lost_trainers = sum(each.component == "trainer" for each in sink.of(FaultDetected))
    assert set(evaluated) == {0, steps} and evaluated.count(0) == 1, evaluated
    assert evaluated.count(steps) <= 1 + lost_trainers, "a lost trainer's last version differs from its successor's"
    trained = [body.step for body in sink.of(StepTrained)]
    assert sorted(set(trained)) == list(range(1, steps + 1))


@pytest.mark.long
def test_each_part_killed_in_turn_loses_and_doubles_nothing(tmp_path: Path, processes_of: ProcessesOf) -> None:
    def kill(kind: str) -> Callable[[], None]:
        return lambda: processes_of(kind)[0].send_signal(signal.SIGKILL)

    kinds = ["TrainerActor", "DataActor", "RelayActor", "EnvironmentActor", "RolloutActor"]
    sink = Blows({6 + 10 * at: kill(kind) for at, kind in enumerate(kinds)})
    finished = run(spec(steps=60, environment={"workers": 2}), tmp_path, sink)
    adds_up(finished, sink, steps=60)
    struck = {fault.component.partition("/")[0]: fault.action for fault in sink.of(FaultDetected)}
    assert {"trainer", "data", "relay", "environment", "rollout"} <= struck.keys()
    assert "replacement" in struck["rollout"]


@pytest.mark.long
def test_restarted_trainer_passes_over_a_damaged_checkpoint(tmp_path: Path, processes_of: ProcessesOf) -> None:
    def strike() -> None:
        for newer in sorted((tmp_path / "checkpoints").glob("step-*"))[1:]:
            for file in newer.glob("*.safetensors"):
                file.write_bytes(file.read_bytes()[:-1] + b"x")
        processes_of("TrainerActor")[0].send_signal(signal.SIGKILL)

    sink = Blows({15: strike})
    finished = run(spec(steps=16), tmp_path, sink)
    adds_up(finished, sink, steps=16)
    assert [body.step for body in sink.of(StepTrained)].count(5) == 2, (
        "step 5 is trained again, from the first checkpoint"
    )


@pytest.mark.long
def test_unreported_steps_of_a_dead_trainer_are_repeated(tmp_path: Path, processes_of: ProcessesOf) -> None:
    """The driver is blocked while its trainer runs to the end and dies before its reports are read."""

    def block_until_the_trainer_is_done() -> None:
        last = tmp_path / "checkpoints" / "step-000016" / PROGRESS_FOLDER / MANIFEST_FILE
        eventually(last.exists, "the trainer has saved its last step", within_s=300)
        processes_of("TrainerActor")[0].send_signal(signal.SIGKILL)

    sink = Blows({6: block_until_the_trainer_is_done})
    finished = run(spec(steps=16), tmp_path, sink)
    assert finished.outcome == "succeeded" and finished.ledger["trained"] == 16 * PROMPTS * GROUP, finished
    assert {each.step for each in sink.of(StepTrained)} == set(range(1, 17))
    assert {each.step for each in sink.of(CheckpointSaved)} == {4, 8, 12, 16}


@pytest.mark.soak  # the simulator kills any two in every order; the tests above kill each for real
def test_two_parts_killed_at_once(tmp_path: Path, processes_of: ProcessesOf) -> None:
    def kill(*kinds: str) -> Callable[[], None]:
        def strike() -> None:
            for process in [processes_of(kind)[-1] for kind in kinds]:
                process.send_signal(signal.SIGKILL)

        return strike

    sink = Blows({6: kill("TrainerActor", "DataActor"), 18: kill("RelayActor", "RolloutActor")})
    finished = run(spec(steps=30), tmp_path, sink)
    adds_up(finished, sink, steps=30)


@pytest.mark.long
def test_frozen_replica_relay_and_environment_are_replaced(tmp_path: Path, processes_of: ProcessesOf) -> None:
    def freeze(kind: str) -> Callable[[], None]:
        return lambda: processes_of(kind)[0].send_signal(signal.SIGSTOP)

    # Without the environment no sample ends, so the run lasts until the silence of all three is detected.
    sink = Blows({4: freeze("RolloutActor"), 8: freeze("RelayActor"), 12: freeze("EnvironmentActor")})
    finished = run(spec(steps=40), tmp_path, sink, patience=Patience(silent_s=8.0))
    adds_up(finished, sink, steps=40)
    silent = {fault.component.partition("/")[0]: fault.message for fault in sink.of(FaultDetected)}
    assert {"rollout", "relay", "environment"} <= silent.keys()
    assert all(int(message.split()[-2]) >= 8 for message in silent.values() if message.startswith("no ")), silent


@pytest.mark.long
@pytest.mark.parametrize("kind", ["RolloutActor", "EnvironmentActor"])
def test_starved_part_is_waited_for(kind: str, tmp_path: Path, processes_of: ProcessesOf) -> None:
    """The part lacks a core for five times the silence limit; without it no sample ends."""
    patience = Patience(silent_s=6.0)
    with ExitStack() as starvation:

        def starve() -> None:
            starvation.enter_context(starved(processes_of(kind)[0].pid, num_busy=4))
            Timer(5 * patience.silent_s, starvation.close).start()

        sink = Blows({4: starve})
        finished = run(
            spec(steps=30, rollout={"max_batch": 16, "max_new_tokens": 40}), tmp_path, sink, patience=patience
        )
    adds_up(finished, sink, steps=30)
    assert [
        fault for fault in sink.of(FaultDetected) if "heartbeat" in fault.message or "answer" in fault.message
    ] == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("schedule", ["sync", "one_step", "stream", "partial", "bounded", "laminar"])
def test_random_blows_at_random_moments(seed: int, schedule: str, tmp_path: Path, processes_of: ProcessesOf) -> None:
    chance = random.Random(seed)
    kinds = ["TrainerActor", "DataActor", "RelayActor", "EnvironmentActor", "RolloutActor"]

    def blow() -> Callable[[], None]:
        struck = chance.sample(kinds, k=chance.randint(1, 2))
        how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])

        def strike() -> None:
            for kind in struck:
                alive = processes_of(kind)
                if alive:
                    os.kill(chance.choice(alive).pid, how)

        return strike

    sink = Blows({step: blow() for step in sorted(chance.sample(range(2, 55), k=4))})
    finished = run(spec(steps=60, schedule={"name": schedule}), tmp_path, sink)
    adds_up(finished, sink, steps=60)
