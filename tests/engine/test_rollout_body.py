"""A replica's body, with the real engine, model and environment: what it starts ends once, here or elsewhere."""

from collections import deque
from collections.abc import Sequence

import pytest

from engine.environments.registry import make_environment
from engine.inference.torch_engine import TorchRolloutEngine
from engine.live.answers import Answer, Ask
from engine.live.rollout_body import RolloutBody, Wires
from engine.models.loading import DEMO_FOLDER
from engine.models.tokenizer import Tokenizer
from engine.pipeline.effects import HandOverSequences, ReportProgress, ResumeSequences, StartSequences, StopSequences
from engine.pipeline.messages import Message, ProgressReported, SequencesHandedOver, TrajectoriesEnded
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupKey, GroupTask, HeldGroup, SampleKey, Trajectory
from engine.pipeline.rollout import RolloutBrain
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec

GROUP = GroupKey(ordinal=5)
SAMPLES = (0, 1, 2, 3)
TASK = GroupTask(key=GROUP, samples=SAMPLES, lease=1)
HELD = HeldGroup(key=GROUP, lease=1, samples=SAMPLES)


def spec(environment: str) -> JobSpec:
    params = {"waits": "none"} if environment == "tool_sums" else {}
    return JobSpec.model_validate(
        {
            "name": "body",
            "environment": {"name": environment, "params": params},
            "rollout": {"max_batch": 8, "max_new_tokens": 40},
        }
    )


class Replica:
    """A body, its environment answering when told to."""

    def __init__(self, environment: str = "running_sums", number: int = 0) -> None:
        job = spec(environment)
        self.asks: deque[Ask] = deque()
        self.handed: list[SequencesHandedOver] = []
        self.environment = make_environment(job.environment, seed=0, data_folder=None)
        self.engine = TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device="cpu")
        self.body = RolloutBody(
            spec=job,
            brain=RolloutBrain(Plan.from_spec(job), replica=number, incarnation=0),
            replica=number,
            incarnation=0,
            engine=self.engine,
            tokenizer=Tokenizer.from_folder(DEMO_FOLDER),
            wires=Wires(post=self._post, ask=self._ask, observe=lambda observed: None),
        )
        self.ended: dict[SampleKey, Trajectory] = {}

    def _post(self, to: str, message: Message) -> None:
        assert isinstance(message, SequencesHandedOver)
        self.handed.append(message)

    def _ask(self, asks: Sequence[Ask]) -> None:
        self.asks.extend(asks)

    def answer(self) -> None:
        while self.asks:
            ask = self.asks.popleft()
            if ask.prompt is None:
                said = self.environment.prompt(ask.key.group.split, ask.key.group.ordinal)
                self.hear(self.body.on_answers([Answer(id=ask.id, said=said)]))
            else:
                verdict = self.environment.respond(ask.prompt, ask.turns)
                self.hear(self.body.on_answers([Answer(id=ask.id, said=verdict)]))

    def hear(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, TrajectoriesEnded):
                for trajectory in message.trajectories:
                    assert trajectory.key not in self.ended
                    self.ended[trajectory.key] = trajectory

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.hear(self.body.work())

    def finish(self) -> None:
        for _ in range(1_000):
            self.answer()
            if not self.body.is_busy and not self.asks:
                return
            self.hear(self.body.work())
        raise AssertionError("it does not end")


def unmoved(environment: str) -> dict[SampleKey, Trajectory]:
    replica = Replica(environment)
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.finish()
    return replica.ended


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
def test_every_sample_that_is_started_ends_exactly_once(environment: str) -> None:
    ended = unmoved(environment)
    assert {key.sample for key in ended} == set(SAMPLES)
    for trajectory in ended.values():
        content = trajectory.content
        assert content is not None and not trajectory.failure
        assert len(content.response_ids) == len(content.logprobs) == trajectory.num_tokens


def test_later_turns_mark_the_environments_words() -> None:
    contents = [trajectory.content for trajectory in unmoved("tool_sums").values()]
    several = [content for content in contents if content is not None and content.written]
    assert several, "no sample had a second turn"
    for content in several:
        assert len(content.written) == len(content.response_ids)
        assert all(
            written or logprob == 0.0 for written, logprob in zip(content.written, content.logprobs, strict=True)
        )


@pytest.mark.parametrize("environment", ["running_sums", "tool_sums"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("answers", [True, False])
def test_a_move_in_the_middle_changes_no_token(environment: str, steps: int, answers: bool) -> None:
    source, host = Replica(environment), Replica(environment, number=1)
    source.body.perform(StartSequences(tasks=(TASK,)))
    source.answer()
    source.steps(steps)
    if answers:
        source.answer()
    handover = HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=WeightsId(0, 0))
    source.hear(source.body.perform(handover))
    [handed] = source.handed
    host.body.perform(ResumeSequences(handed=handed))
    source.finish()
    host.finish()
    assert not source.ended.keys() & host.ended.keys()
    moved = source.ended | host.ended
    for key, trajectory in unmoved(environment).items():
        content, expected = moved[key].content, trajectory.content
        assert content is not None and expected is not None
        assert content.response_ids == expected.response_ids
        assert content.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert moved[key].reward == trajectory.reward


def test_a_move_carries_the_cache_so_that_nothing_is_computed_twice() -> None:
    source, host = Replica(), Replica(number=1)
    source.body.perform(StartSequences(tasks=(TASK,)))
    source.answer()
    source.steps(2)
    source.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=WeightsId(0, 0)))
    host.body.perform(ResumeSequences(handed=source.handed[0]))
    host.finish()
    assert host.engine.view().num_prefilled == 0


def test_what_is_stopped_never_comes_back_and_says_how_far_it_had_come() -> None:
    replica = Replica()
    replica.body.perform(StartSequences(tasks=(TASK,)))
    replica.answer()
    replica.steps(1)
    [reported] = replica.body.perform(StopSequences(groups=(HELD,), reports=True))
    assert isinstance(reported, ProgressReported) and reported.is_stopped
    stopped = {progress.key for progress in reported.progress}
    replica.finish()
    assert not stopped & replica.ended.keys()
    assert stopped | replica.ended.keys() == {SampleKey(group=GROUP, sample=sample) for sample in SAMPLES}


def test_what_data_was_told_is_enough_to_go_on_from_when_the_replica_is_gone() -> None:
    lost, heir = Replica(), Replica(number=1)
    lost.body.perform(StartSequences(tasks=(TASK,)))
    lost.answer()
    lost.steps(3)
    [reported] = lost.body.perform(ReportProgress(groups=(HELD,)))
    assert isinstance(reported, ProgressReported)
    lost.steps(2)  # nobody hears of these any more
    samples = tuple(progress.key.sample for progress in reported.progress)
    rest = GroupTask(key=GROUP, samples=samples, lease=2, progress=reported.progress)
    heir.body.perform(StartSequences(tasks=(rest,)))
    heir.finish()
    whole = unmoved("running_sums")
    for key, trajectory in heir.ended.items():
        content, expected = trajectory.content, whole[key].content
        assert content is not None and expected is not None
        assert content.response_ids == expected.response_ids
