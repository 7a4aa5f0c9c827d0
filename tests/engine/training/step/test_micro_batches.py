"""How trajectories are dealt to ranks."""

import random

import pytest

from engine.policy.pace import flops_of_sequence
from engine.spec.fit.known_models import known_shape
from engine.training.step.micro_batch import deal


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_have_as_much_work_as_each_other_on_a_long_tail(name: str, seed: int) -> None:
    """512 answers of up to 32k tokens to 8 ranks: attention's square is most of the work of the longest."""
    shape, rng = known_shape(name), random.Random(seed)
    width = shape.num_layers * shape.num_heads * shape.head_dim
    lengths = [min(round(rng.lognormvariate(7.5, 1.2)), 32_768) for _ in range(512)]
    work = [flops_of_sequence(shape.num_weights, width, length) for length in lengths]
    members = range(len(lengths))
    by_work, by_tokens = (
        [sum(work[member] for member in share) for share in deal(members, measure, 8)]
        for measure in (work, list(map(float, lengths)))
    )
    assert max(by_work) / (sum(by_work) / 8) <= 1.05
    assert max(by_work) < max(by_tokens)


def test_every_trajectory_is_dealt_once() -> None:
    shares = deal([3, 1, 4, 9], [float(at) for at in range(10)], 3)
    assert sorted(member for share in shares for member in share) == [1, 3, 4, 9]
