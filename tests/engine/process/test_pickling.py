"""Records arrive as they were sent, with either pickler."""

import pickle
from copy import copy
from dataclasses import dataclass, replace

import pytest
from ray import cloudpickle

from engine.environments.port import Prompt, Turn
from engine.live.environment.turns import Answer, Ask
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.messages.to_rollout import WorkGranted
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import (
    Failure,
    GroupKey,
    GroupTask,
    Growth,
    SampleKey,
    SampleProgress,
    Trajectory,
    TrajectoryContent,
    Utterance,
    VersionRun,
)
from engine.policy.lineage import WeightsId
from engine.process.pickling import pickled_by_values

KEY = SampleKey(group=GroupKey(ordinal=3), sample=1)
PROMPT = Prompt(split="train", ordinal=3, text="1 + 2 =", facts={"terms": "1 2"})
ASK = Ask(by=rollout_address(1), key=KEY, prompt=PROMPT, turns=(Turn(text=" 3."),))
CONTENT = TrajectoryContent(
    prompt_ids=Ints.of([1, 2]),
    response_ids=Ints.of([3]),
    logprobs=Floats.of([-0.5]),
    prompt_text="1 + 2 =",
    response_text=" 3.",
    remark="right",
    utterances=(Utterance(is_own=True, start=0, num_letters=3, first_token=0, num_tokens=1, seconds=0.5),),
    parts=(("right", 1.0),),
)
TRAJECTORY = Trajectory(key=KEY, weights=WeightsId(0, 2), reward=1.0, num_tokens=1, content=CONTENT)

GROWTH = Growth(
    weights=WeightsId(0, 2),
    ordinals=Ints.of([3]),
    samples=Ints.of([1]),
    sample_runs=Ints.of([7]),
    marks=Ints.of([0]),
    since=Ints.of([20]),
    num_new=Ints.of([1]),
    routes_since=Ints.of([60]),
    num_new_route_bytes=Ints.of([3]),
    packed_tokens=b"12345678",
    packed_routes=b"123",
)
PROGRESS = SampleProgress(
    key=KEY,
    num_tokens=2,
    runs=(VersionRun(weights=WeightsId(0, 2), num_tokens=2),),
    packed_tokens=b"1" * 16,
    packed_routes=b"2" * 6,
    num_route_bytes=6,
)
STREAMED = ProgressStreamed(replica=1, incarnation=0, serial=2, progress=(PROGRESS,), growth=(GROWTH,))
GRANTED = WorkGranted(incarnation=0, tasks=(GroupTask(key=KEY.group, samples=(1,), progress=(PROGRESS,)),))


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "sent",
    [
        TRAJECTORY,
        replace(TRAJECTORY, failure=Failure(kind="error", reason="x")),
        ASK,
        Answer(id=ASK.id, result=PROMPT),
        STREAMED,
        GRANTED,
    ],
)
def test_a_record_arrives_as_it_was_sent(sent: object, dumps: object) -> None:
    assert callable(dumps)
    came = pickle.loads(dumps([sent, sent]))  # noqa: S301 - our own
    assert came == [sent, sent] and came[0] is came[1] and type(came[0]) is type(sent)


@dataclass(frozen=True, slots=True)
class Counted:
    one: int
    other: int = 0

    def __post_init__(self) -> None:
        assert self.one >= 0


def test_unpickling_validates_nothing() -> None:
    pickled_by_values(Counted)
    sent = Counted(1)
    object.__setattr__(sent, "one", -1)
    assert copy(sent) == sent, "copying uses the same reduction as pickling"
