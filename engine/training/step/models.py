"""The models of a step: the policy, and a reference, a teacher and a critic if the algorithm has them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.spec.job import AlgorithmSpec
from engine.spec.recipes import RECIPES
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.scoring import TokenScores


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModels:
    """Functions of a micro-batch, called without gradients where none are needed."""

    policy: Callable[[MicroBatch], TokenScores]
    reference: Callable[[MicroBatch], TokenScores] | None = None
    """Set if and only if `needs_reference`."""
    teacher: Callable[[MicroBatch], TokenScores] | None = None
    """Set if and only if the algorithm has one."""
    critic: Callable[[MicroBatch], Tensor] | None = None
    """Set if and only if `needs_critic`."""


def needs_reference(algorithm: AlgorithmSpec) -> bool:
    return algorithm.kl.coefficient > 0.0


def needs_critic(algorithm: AlgorithmSpec) -> bool:
    return RECIPES[algorithm.name].advantage == "critic"
