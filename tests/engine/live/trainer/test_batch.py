"""Records of finished groups, joined into one batch of arrays that ranks share."""

import pickle

import numpy as np

from engine.live.trainer.batch import batch_of
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.pipeline.records import (
    ALL_WRITTEN,
    CompleteGroup,
    GroupKey,
    SampleKey,
    Trajectory,
    TrajectoryContent,
    VersionRun,
)
from engine.policy.lineage import Lineage, WeightsId
from engine.training.batch import TrainingBatch, TrainingTrajectory


def answer(
    ordinal: int, sample: int, ids: list[int], *, written: Marks = ALL_WRITTEN, runs: tuple[VersionRun, ...] = ()
) -> Trajectory:
    return Trajectory(
        key=SampleKey(group=GroupKey(ordinal=ordinal), sample=sample),
        weights=WeightsId(0, 4),
        runs=runs,
        reward=sample + 0.5,
        num_tokens=len(ids),
        trusted=sample == 0,
        cut=ordinal == 7,
        content=TrajectoryContent(
            prompt_ids=Ints.of([9, ordinal]),
            response_ids=Ints.of(ids),
            logprobs=Floats.of([-each / 4 for each in ids]),
            written=written,
            prompt_text="",
            response_text="",
            remark="",
            routes=Bytes(bytes(2 + len(ids))),
            breaks=Ints.of([2] if len(ids) == 4 else []),
        ),
    )


TWO_VERSIONS = (
    VersionRun(weights=WeightsId(0, 4), num_tokens=1),
    VersionRun(weights=WeightsId(0, 6), num_tokens=2),
)
GROUPS = [
    CompleteGroup(
        key=GroupKey(ordinal=3),
        trajectories=(
            answer(3, 0, [5, 6, 7], runs=TWO_VERSIONS),
            answer(3, 1, [8, 8, 8, 8], written=Marks.of([True, False, True, False])),
        ),
    ),
    CompleteGroup(key=GroupKey(ordinal=7), trajectories=(answer(7, 0, [1]), answer(7, 1, [2, 3]))),
]


def test_batch_holds_every_token_as_its_record_does() -> None:
    batch = batch_of(GROUPS, Lineage(), at=6)
    expected = TrainingBatch.of(
        [
            TrainingTrajectory(
                group=number,
                prompt_ids=(9, group.key.ordinal),
                response_ids=tuple(each.content.response_ids),
                behaviour_logprobs=tuple(each.content.logprobs),
                written=tuple(each.content.written),
                staleness=(2, 0, 0) if each.runs else (2,) * each.num_tokens,
                reward=each.reward,
                trusted=each.trusted,
                cut=each.cut,
                routes=each.content.routes.data,
                breaks=tuple(each.content.breaks),
            )
            for number, group in enumerate(GROUPS)
            for each in group.trajectories
            if each.content is not None
        ]
    )
    for held, other in ((batch, expected), (batch.tokens, expected.tokens)):
        for name in held.__dataclass_fields__:
            if name != "tokens":
                assert np.array_equal(getattr(held, name), getattr(other, name)), name
    assert batch.tokens.ids_A.tolist() == [9, 3, 9, 7, 5, 6, 7, 8, 8, 8, 8, 1, 2, 3], "a group's prompt is stored once"
    assert batch.last_written_N.tolist() == [2, 2, 0, 1] and batch.num_written_N.tolist() == [3, 2, 1, 2]
    assert [batch.breaks_of(member).tolist() for member in range(4)] == [[], [2], [], []]


def test_receiver_of_a_batch_maps_its_arrays_in_place() -> None:
    """Ray does this with the buffers that a pickle leaves out of band."""
    batch, outside = batch_of(GROUPS * 100, Lineage(), at=6), list[pickle.PickleBuffer]()
    inside = pickle.dumps(batch, protocol=5, buffer_callback=outside.append)
    mapped = pickle.loads(inside, buffers=[each.raw().toreadonly() for each in outside])  # noqa: S301 - our own
    assert len(inside) < 3_000 < batch.tokens.ids_A.nbytes
    for name in batch.tokens.__dataclass_fields__:
        assert np.shares_memory(getattr(mapped.tokens, name), getattr(batch.tokens, name))
