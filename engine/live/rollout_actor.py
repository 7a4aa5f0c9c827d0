"""A replica's actor: decodes what it was granted, lets the environment judge what ends, installs weights in place.

Invariants:
- a prompt is rebuilt from its ordinal and a sample's seed from its key, so any replica makes the same request of it;
- every sequence started comes back as exactly one trajectory, graded or with the reason why not;
- bytes are verified against their manifest before they replace weights.
"""

from hashlib import sha256
from typing import Final

from engine.environments.port import Environment, Observation, Prompt, Turn, Verdict
from engine.inference.port import RolloutEngine, SamplingParams, SequenceOutput, SequenceRequest
from engine.live.actor import BodyActor
from engine.live.body import Body
from engine.live.devices import claim_device
from engine.live.stored_weights import map_version
from engine.models.tokenizer import Tokenizer
from engine.pipeline.effects import Effect, InstallWeights, StartSequences
from engine.pipeline.messages import (
    InstallRefused,
    LoadMeasured,
    Message,
    TrajectoriesEnded,
    WeightsInstalled,
    rollout_address,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupTask, SampleKey, Trajectory, TrajectoryContent
from engine.pipeline.rollout import RolloutBrain
from engine.spec.job import JobSpec
from engine.weights.chunks import TornWeights, verify_weights

MEASURE_EVERY_S: Final = 1.0
GRADER_TRIES: Final = 3
REASON_CHARACTERS: Final = 500


class RolloutBody:
    tick_s = 0.05

    def __init__(
        self,
        *,
        spec: JobSpec,
        brain: RolloutBrain,
        engine: RolloutEngine,
        environment: Environment,
        tokenizer: Tokenizer,
    ) -> None:
        self.brain = brain
        self._spec = spec
        self._engine = engine
        self._environment = environment
        self._tokenizer = tokenizer
        self._keys: dict[str, SampleKey] = {}
        self._prompts: dict[str, tuple[Prompt, tuple[int, ...]]] = {}
        self._ended_at_once: list[Trajectory] = []
        self._version = -1
        self._num_tokens = 0
        self._measured_at = float("-inf")

    @property
    def is_busy(self) -> bool:
        return bool(self._keys or self._ended_at_once)

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case StartSequences():
                for task in effect.tasks:
                    self._start(task)
                return []
            case InstallWeights():
                return [self._install(effect)]
            case _:
                raise TypeError(f"a rollout's body does not do {type(effect).__name__}")

    def work(self) -> list[Message]:
        ended, self._ended_at_once = self._ended_at_once, []
        if self._keys:
            ended += [self._judged(output) for output in self._engine.step()]
        return [TrajectoriesEnded(trajectories=tuple(ended))] if ended else []

    def measure(self, now: float) -> list[Message]:
        if now - self._measured_at < MEASURE_EVERY_S:
            return []
        self._measured_at = now
        return [LoadMeasured(kv_used=self._engine.view().kv_used, num_tokens=self._num_tokens)]

    # ── weights and prompts ───────────────────────────────────────────────────────────────────────────────────────

    def _install(self, effect: InstallWeights) -> Message:
        weights = map_version(effect.manifest, effect.payload)
        try:
            verify_weights(weights)
        except TornWeights as error:
            return InstallRefused(version=weights.version, reason=str(error))
        self._engine.install(weights)
        self._version = weights.version
        return WeightsInstalled(version=weights.version)

    def _start(self, task: GroupTask) -> None:
        prompt = self._environment.prompt(task.key.split, task.key.ordinal)
        prompt_ids = tuple(self._tokenizer.encode(prompt.text))
        keys = {_sequence_id(key): key for key in (SampleKey(group=task.key, sample=at) for at in task.samples)}
        requests = [
            SequenceRequest(sequence_id=name, prompt_ids=prompt_ids, sampling=self._sampling(name)) for name in keys
        ]
        try:
            self._engine.submit(requests)
        except ValueError as error:  # this prompt does not fit the model; others do
            self._ended_at_once += [self._failed(key, 0, str(error), None) for key in keys.values()]
            return
        for name, key in keys.items():
            self._keys[name], self._prompts[name] = key, (prompt, prompt_ids)

    def _sampling(self, sequence_id: str) -> SamplingParams:
        drawn = sha256(f"{self._spec.training.seed}/{sequence_id}".encode()).digest()
        return SamplingParams(
            max_new_tokens=self._spec.rollout.max_new_tokens,
            temperature=self._spec.rollout.temperature,
            seed=int.from_bytes(drawn[:4], "big") >> 1,
        )

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _judged(self, output: SequenceOutput) -> Trajectory:
        key = self._keys.pop(output.sequence_id)
        prompt, prompt_ids = self._prompts.pop(output.sequence_id)
        self._num_tokens += len(output.token_ids)
        text = self._tokenizer.decode(output.token_ids)
        verdict = self._verdict(prompt, text)
        content = TrajectoryContent(
            prompt_ids=prompt_ids,
            response_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_text=prompt.text,
            response_text=text,
            remark=verdict if isinstance(verdict, str) else verdict.remark,
        )
        version, num_tokens = min(output.versions, default=self._version), len(output.token_ids)
        if isinstance(verdict, str):
            return self._failed(key, num_tokens, verdict, content)
        return Trajectory(
            key=key,
            version=version,
            reward=verdict.reward,
            num_tokens=num_tokens,
            cut=output.reason == "length",
            content=content,
        )

    def _verdict(self, prompt: Prompt, text: str) -> Verdict | str:
        """The verdict, or why there is none."""
        reason = ""
        for _ in range(GRADER_TRIES):
            try:
                answer = self._environment.respond(prompt, [Turn(text=text)])
            except Exception as error:  # noqa: BLE001 - a customer's code; whatever it raises is no reward of 0
                reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
                if not getattr(error, "retryable", False):
                    return reason
                continue
            if isinstance(answer, Observation):
                return f"{self._environment.name} asks for a second turn, which this engine does not take yet"
            return answer
        return reason

    def _failed(self, key: SampleKey, num_tokens: int, reason: str, content: TrajectoryContent | None) -> Trajectory:
        return Trajectory(
            key=key, version=self._version, reward=0.0, num_tokens=num_tokens, failure=reason, content=content
        )


def _sequence_id(key: SampleKey) -> str:
    asked_by = "train" if key.group.evaluation is None else f"evaluation-{key.group.evaluation}"
    return f"{asked_by}/{key.group.ordinal}/{key.sample}"


class RolloutActor(BodyActor):
    def __init__(self, *, spec: JobSpec, replica: int, incarnation: int) -> None:
        self._spec, self._replica, self._incarnation = spec, replica, incarnation
        super().__init__(name=rollout_address(replica))

    def build(self) -> Body:
        device = claim_device()
        from engine.environments.registry import make_environment  # heavy imports on this thread, not before
        from engine.inference.torch_engine import TorchRolloutEngine
        from engine.models.loading import resolve_model

        spec = self._spec
        folder = resolve_model(spec.model.source)
        return RolloutBody(
            spec=spec,
            brain=RolloutBrain(Plan.from_spec(spec), replica=self._replica, incarnation=self._incarnation),
            engine=TorchRolloutEngine(folder, max_batch=spec.rollout.max_batch, device=device),
            environment=make_environment(
                spec.environment.name, seed=spec.training.seed, params=spec.environment.params
            ),
            tokenizer=Tokenizer.from_folder(folder),
        )
