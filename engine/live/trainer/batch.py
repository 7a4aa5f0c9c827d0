"""Joins the records of finished groups into one batch.

Invariant: a record's numbers are read in place and copied once, into the batch.
"""

from collections.abc import Sequence

import numpy as np

from engine.pipeline.records import CompleteGroup, Trajectory, VersionRun
from engine.policy.lineage import Lineage
from engine.training.batch import TrainingBatch, TrajectoryArrays


def batch_of(groups: Sequence[CompleteGroup], lineage: Lineage, *, at: int) -> TrainingBatch:
    """`at`: the version to train, from which the staleness of tokens is counted."""
    return TrainingBatch.joined(
        _arrays_of(number, trajectory, lineage, at)
        for number, group in enumerate(groups)
        for trajectory in group.trajectories
    )


def _arrays_of(number: int, trajectory: Trajectory, lineage: Lineage, at: int) -> TrajectoryArrays:
    content = trajectory.content
    assert content is not None, f"{trajectory.key} has no tokens"
    runs = trajectory.runs or (VersionRun(weights=trajectory.weights, num_tokens=len(content.response_ids)),)
    ages = [lineage.staleness(run.weights, at=at) for run in runs]
    return TrajectoryArrays(
        group=number,
        prompt_ids=np.frombuffer(content.prompt_ids.data, np.int32),
        response_ids=np.frombuffer(content.response_ids.data, np.int32),
        behaviour_logprobs=np.frombuffer(content.logprobs.data, np.float32),
        written=np.frombuffer(content.written.data, np.bool_),
        staleness=np.repeat(np.array(ages, np.int32), [run.num_tokens for run in runs]),
        reward=trajectory.reward,
        trusted=trajectory.trusted,
        cut=trajectory.cut,
        routes=np.frombuffer(content.routes.data, np.uint8),
        breaks=np.frombuffer(content.breaks.data, np.int32),
    )
