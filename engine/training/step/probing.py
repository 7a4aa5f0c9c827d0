"""A probe of the weights as a step's pass: one row of tokens, read once by the policy as it is.

Invariant: it is scored as the step's own tokens are, by the same pass over the same ranks, but at temperature 1, which
is what every rollout engine can answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from engine.training.batch import TrainingBatch, TrainingTrajectory
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.scoring import TokenScores

# Two right programs in float32 differ by a hundred-thousandth; a ratio of probabilities that is off by a thousandth
# teaches nothing wrong.
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


def plainly(policy: Callable[[MicroBatch], TokenScores]) -> Callable[[MicroBatch], TokenScores]:
    return lambda batch: policy(replace(batch, temperature=1.0))


def tolerance_of(logprobs: Sequence[float], *, of_terms: float) -> float:
    """The mean difference that rounding explains at worst. `of_terms`: the part of itself that a logit's term is off
    by; if all err one way, a log-prob is off by that part of itself."""
    return max(LEAST_TOLERANCE, of_terms * math.fsum(map(abs, logprobs)) / len(logprobs))
