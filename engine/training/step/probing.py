"""A probe of the weights: one row of tokens, scored by the current policy.

Invariant: the probe is scored like a step's tokens, by the same pass over the same ranks, but at temperature 1, which
every rollout engine supports.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.training.batch import TrainingBatch, TrainingTrajectory
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.scoring import TokenScores

# Two correct programs in float32 differ by 1e-5; a ratio of probabilities that is off by 1e-3 does not harm training.
LEAST_TOLERANCE: Final = 1e-3


def row_of(token_ids: Sequence[int]) -> TrainingBatch:
    first, *rest = token_ids
    alone = TrainingTrajectory(
        group=0,
        prompt_ids=(first,),
        response_ids=tuple(rest),
        behaviour_logprobs=(0.0,) * len(rest),
        reward=0.0,
    )
    return TrainingBatch.of([alone])


def at_temperature_1(policy: Callable[[MicroBatch], TokenScores]) -> Callable[[MicroBatch], TokenScores]:
    return lambda batch: policy(replace(batch, temperature=1.0))


def tolerance_of(logprobs: Sequence[float], *, of_terms: float) -> float:
    """The largest mean difference that rounding explains. `of_terms`: the relative error of a logit's terms; if all err
    in one direction, a log-prob has this relative error too."""
    return max(LEAST_TOLERANCE, of_terms * math.fsum(map(abs, logprobs)) / len(logprobs))
