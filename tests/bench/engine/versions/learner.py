"""A learner in one process: answers by the trace, verdicts by the environment, steps by the trainer that jobs have.

Invariant: the model, the prompts and the draws follow from the seed; two learners differ by the trace, the
correction and the learning rate.
"""

from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from engine.environments.port import Environment, Prompt, Verdict
from engine.environments.registry import make_environment
from engine.inference.port import SamplingParams
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.rollout.wording import Wording
from engine.models.loading import resolve_model
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.settings import TrainerSettings
from engine.weights.port import WeightVersion
from tests.bench.engine.versions.answers import Wanted, Written, write
from tests.bench.engine.versions.trace import Answer, Part, Trace

DEVICE: Final = "cpu"
MOST_VERSIONS: Final = 128
"""That are stored."""
BY_ITSELF: Final[Answer] = (Part(1.0, 0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    reward: tuple[float, ...]
    """Of each step's batch."""
    held_out: tuple[tuple[int, float], ...]
    """After so many steps."""
    staleness: float
    """The mean age of trained tokens."""
    num_mixed: int
    """Answers that several versions wrote."""


class Learner:
    def __init__(self, spec: JobSpec, trace: Trace) -> None:
        folder = resolve_model(spec.model.source)
        self._spec, self._trace = spec, trace
        self._environment: Environment = make_environment(
            spec.environment, seed=spec.training.seed, data_folder=Path.cwd()
        )
        self._wording = Wording.of_model(folder, spec.model)
        self._trainer = build_trainer(folder, TrainerSettings.of(spec), device=DEVICE)
        self._engine = TorchRolloutEngine(folder, max_batch=spec.rollout.max_batch, device=DEVICE)
        self._versions: deque[WeightVersion] = deque(maxlen=MOST_VERSIONS)
        self._ages: list[int] = []
        self._num_mixed = 0

    def learn(self, *, evaluate_every: int) -> Learned:
        steps = self._spec.training.steps
        self._store(0)
        rewards, held_out = [], [(0, self._held_out())]
        for step in range(1, steps + 1):
            rewards.append(self._step(step))
            self._store(step)
            if step % evaluate_every == 0 or step == steps:
                held_out.append((step, self._held_out()))
        return Learned(
            reward=tuple(rewards),
            held_out=tuple(held_out),
            staleness=sum(self._ages) / max(1, len(self._ages)),
            num_mixed=self._num_mixed,
        )

    def _store(self, version: int) -> None:
        self._versions.append(self._trainer.snapshot(WeightsId(0, version)))

    def _step(self, step: int) -> float:
        per_step, size = self._spec.training.prompts_per_step, self._spec.algorithm.group_size
        by_prompt = self._trace.prompts_of(step, per_step, size)
        prompts = [self._environment.prompt("train", (step - 1) * per_step + at) for at in range(per_step)]
        wanted = [
            self._wanted(prompt, sample, self._known(answer, step))
            for prompt, answers in zip(prompts, by_prompt, strict=True)
            for sample, answer in enumerate(answers)
        ]
        written = self._write(wanted, trained=step - 1)
        batch, rewards = [], []
        for number, prompt in enumerate(prompts):
            for sample in range(size):
                asked = wanted[number * size + sample]
                answer = written[asked.name]
                reward = self._judged(prompt, answer)
                rewards.append(reward)
                self._ages += answer.ages
                self._num_mixed += len(set(answer.ages)) > 1
                batch.append(_trained(number, asked, answer, reward))
        self._trainer.train_step(batch)
        return sum(rewards) / len(rewards)

    def _known(self, answer: Answer, step: int) -> Answer:
        """By versions that are stored still."""
        most = step - 1 - self._versions[0].version
        return tuple(Part(part.share, min(part.age, most)) for part in answer)

    def _wanted(self, prompt: Prompt, sample: int, answer: Answer) -> Wanted:
        rollout, name = self._spec.rollout, f"{prompt.split}/{prompt.ordinal}/{sample}"
        drawn = sha256(f"{self._spec.training.seed}/{name}".encode()).digest()
        return Wanted(
            name=name,
            prompt_ids=self._wording.render_prompt(prompt).ids,
            sampling=SamplingParams(
                max_new_tokens=rollout.max_new_tokens,
                temperature=rollout.temperature,
                seed=int.from_bytes(drawn[:4], "big") >> 1,
            ),
            answer=answer,
        )

    def _write(self, wanted: list[Wanted], *, trained: int) -> dict[str, Written]:
        versions = {version.version: version for version in self._versions}
        return write(self._engine, wanted, trained=trained, versions=versions)

    def _judged(self, prompt: Prompt, answer: Written) -> float:
        verdict = self._environment.respond(prompt, [self._wording.decode(answer.token_ids).turn])
        assert isinstance(verdict, Verdict), "one turn is answered by a verdict"
        return verdict.reward

    def _held_out(self) -> float:
        num, newest = self._spec.evaluation.prompts, self._versions[-1].version
        prompts = [self._environment.prompt("held_out", at) for at in range(num)]
        wanted = [self._wanted(prompt, 0, BY_ITSELF) for prompt in prompts]
        written = self._write(wanted, trained=newest)
        rewards = [self._judged(prompt, written[each.name]) for prompt, each in zip(prompts, wanted, strict=True)]
        return sum(rewards) / num


def _trained(group: int, wanted: Wanted, answer: Written, reward: float) -> TrainingTrajectory:
    return TrainingTrajectory(
        group=group,
        prompt_ids=wanted.prompt_ids,
        response_ids=answer.token_ids,
        behaviour_logprobs=answer.logprobs,
        reward=reward,
        staleness=answer.ages,
        cut=answer.cut,
    )
