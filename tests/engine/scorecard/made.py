"""Kept runs made by the simulator itself, so that the right scorecard is known."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from engine.live.body.recording import Recording
from engine.pipeline.effects import TrainOn
from engine.pipeline.messages.addresses import DATA
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import Trajectory, TrajectoryContent, Utterance
from engine.policy.lineage import WeightsId
from engine.scorecard.kept import ABOUT_FILE, FACTS_FILE, RECORDINGS, SPEC_FILE, KeptRun, kept_run
from engine.scorecard.recording import environment_of, wait_s
from engine.sim.chance import Chance
from engine.sim.costs.environment import Call
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup
from engine.sim.fleet.work import Work
from engine.spec.facts import Fact, FactBody, PipelineReady, ReplicasObserved, ReplicaState, StepTrained
from engine.spec.job import JobSpec

PARAMETERS: Final = 201_536
WARM_UP: Final = 2
BEGAN: Final = datetime(2026, 11, 27, tzinfo=UTC)


def spec_of(schedule: str, waits: str, *, steps: int = 8, **more: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": f"{schedule}, {waits} waits",
            "schedule": {"name": schedule},
            "environment": {"name": "tool_sums", "params": {"waits": waits, "wait_mean_s": 0.5, "turns": 3}},
            "training": {"steps": steps, "prompts_per_step": 4, "checkpoint_every": steps},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 2, "max_batch": 8, "max_new_tokens": 64, **more},
            "evaluation": {"prompts": 1},
        }
    )


class WithTools:
    """A few tokens a turn; the waits of the spec's environment, and a fixed time beyond each."""

    def __init__(self, spec: JobSpec, *, overhead_s: float) -> None:
        self._environment, self._overhead_s = environment_of(spec), overhead_s

    def work(self, seed: int, key: Any) -> Work:
        chance = Chance(seed, f"work/{key.group.ordinal}/{key.sample}")
        turns = tuple(chance.whole(2, 9) for _ in range(3))
        calls = tuple(Call(wait_s(self._environment, key, turn) + self._overhead_s, 2) for turn in range(2))
        return Work(prompt=4, turns=turns, calls=calls)


class Kept(Fleet):
    """Records what a live run would."""

    def __init__(self, setup: Setup, *, folder: Path, stretched: float) -> None:
        super().__init__(setup)
        folder.mkdir(parents=True)
        self._file = (folder / FACTS_FILE).open("w")
        self._recording = Recording(folder / RECORDINGS / "data.0.jsonl", part=DATA, built_with={})
        self._stretched, self._seq = stretched, 0
        self._tell(PipelineReady(num_replicas=len(self.replicas), num_parameters=PARAMETERS))

    def _tell(self, body: FactBody) -> None:
        self._seq += 1
        at = BEGAN + timedelta(seconds=self.kernel.now * self._stretched)
        self._file.write(Fact(seq=self._seq, at=at, body=body).model_dump_json() + "\n")
        self._file.flush()

    def _end_step(self, effect: TrainOn, tokens: int) -> None:
        waited_s = self._began_at - (self.steps[-1].ended_at + self.setup.stall_s if self.steps else 0.0)
        super()._end_step(effect, tokens)
        step, before = self.steps[-1], self.steps[-2].ended_at if len(self.steps) > 1 else 0.0
        for group in effect.groups:
            self._recording.note(self.kernel.now, _told(self.setup, group.trajectories), [])
        step_s = step.ended_at - before
        metrics = {
            "trainer/step_s": step_s,
            "trainer/wait_fraction": max(0.0, waited_s) / step_s,
            "trainer/handover_s": self.setup.stall_s,
            "staleness/mean": step.staleness_sum / step.num_trajectories,
            "train/tokens": float(tokens),
            "train/updates": 1.0,
        }
        self._tell(StepTrained(step=effect.step, metrics=metrics))
        self._tell(ReplicasObserved(replicas=[self._state(at) for at in range(len(self.replicas))]))

    def _state(self, number: int) -> ReplicaState:
        decoding = self.replicas[number].body.decoding
        return ReplicaState(
            replica=number, incarnation=0, version=0, kv_used=0.0, num_running=0, num_waiting=0, num_with_environment=0,
            num_prefilled=decoding.num_prefilled, num_decoded=decoding.num_written, num_steps=decoding._step,
            decode_s=decoding.busy_s + decoding.num_prefilled * self.setup.prefill_s, spans=[],
        )  # fmt: skip


def _told(setup: Setup, trajectories: tuple[Trajectory, ...]) -> ReplicaSynced:
    return ReplicaSynced(
        replica=0,
        incarnation=0,
        serial=1,
        weights=WeightsId(0, 0),
        wants=0,
        room=0,
        groups=(),
        finished=tuple(_with_content(setup, each) for each in trajectories),
    )


def _with_content(setup: Setup, trajectory: Trajectory) -> Trajectory:
    work, utterances, at = setup.work(trajectory.key), list[Utterance](), 0
    for turn, tokens in enumerate(work.turns):
        utterances.append(Utterance(is_own=True, start=0, num_letters=0, first_token=at, num_tokens=tokens))
        at += tokens
        for call in work.calls[turn : turn + 1]:
            utterances.append(
                Utterance(
                    is_own=False, start=0, num_letters=0, first_token=at, num_tokens=call.tokens, seconds=call.takes_s
                )
            )
            at += call.tokens
    content = TrajectoryContent(
        prompt_ids=Ints.of(range(work.prompt)),
        response_ids=Ints.of(range(at)),
        logprobs=Floats.of([0.0] * at),
        prompt_text="",
        response_text="",
        remark="",
        utterances=tuple(utterances),
    )
    return Trajectory(
        key=trajectory.key, weights=trajectory.weights, reward=1.0, num_tokens=trajectory.num_tokens, content=content
    )


def keep(setup: Setup, spec: JobSpec, folder: Path, *, stretched: float = 1.0) -> KeptRun:
    """`stretched`: the factor by which recorded times exceed simulated ones."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    about: Mapping[str, Any] = {"warm_up": WARM_UP, "machine": {"cores": 2, "load_before": 0.1}}
    (folder.parent / ABOUT_FILE).write_text(json.dumps(about))
    fleet = Kept(setup, folder=folder, stretched=stretched)
    (folder / SPEC_FILE).write_text(spec.model_dump_json())
    fleet.run()
    return kept_run(folder)
