"""The division of trajectories among ranks, and the content of micro-batches."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.fit.known_models import known_shape
from engine.training.batch import TrainingBatch, TrainingTrajectory
from engine.training.step.dealing import Costs, deal
from engine.training.step.flops import flops_of_sequence
from engine.training.step.micro_batch import MicroBatch, batch_step
from tests.engine.training.trainer_conformance import trajectories_of

# Shares ---------------------------------------------------------------------------------------------------------------


def costs_of(lengths: Sequence[int], name: str = "Qwen3-8B") -> Costs:
    shape = known_shape(name)
    width = shape.num_layers * shape.num_heads * shape.head_dim
    return Costs(lengths=lengths, work=[flops_of_sequence(shape.num_weights, width, length) for length in lengths])


def shares_of(costs: Costs, num_ranks: int, *, max_tokens: int = 64) -> list[list[list[int]]]:
    return deal(range(len(costs.lengths)), costs, max_tokens=max_tokens, num_ranks=num_ranks)


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_have_balanced_work_on_a_long_tail(name: str, seed: int) -> None:
    """512 answers of up to 32k tokens on 8 ranks: attention's quadratic part dominates the longest. The ranks' time
    includes waiting for each other after every micro-batch."""
    rng = random.Random(seed)
    costs = costs_of([min(round(rng.lognormvariate(7.5, 1.2)), 32_768) for _ in range(512)], name)
    work = [
        [sum(costs.work[member] for member in own) for own in micro_batches]
        for micro_batches in shares_of(costs, 8, max_tokens=8_192)
    ]
    mean = sum(map(sum, work)) / 8
    assert max(map(sum, work)) / mean <= 1.05
    in_step = sum(map(max, zip(*work, strict=True)))
    assert in_step / mean <= (1.05 if name != "Qwen3-0.6B" else 1.15), "half of whose work is attention's"
    assert all(own for micro_batches in shares_of(costs, 8, max_tokens=8_192) for own in micro_batches)


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 8))
def test_ranks_make_equal_numbers_of_passes_without_repeats(lengths: list[int], num_ranks: int) -> None:
    ranks = shares_of(costs_of(lengths), num_ranks)
    assert len(set(map(len, ranks))) == 1
    members = [member for micro_batches in ranks for own in micro_batches for member in own]
    assert sorted(members) == list(range(len(lengths)))
    for micro_batches in ranks:
        sizes = list(map(len, micro_batches))
        assert 0 not in sizes or max(sizes) <= 1, "a filler only where nothing is left to divide"
        assert all(sum(lengths[member] for member in own) <= 64 for own in micro_batches)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 8))
def test_micro_batch_is_within_the_bound_or_its_turns_longest(lengths: list[int], num_ranks: int) -> None:
    for turn in zip(*shares_of(costs_of(lengths), num_ranks, max_tokens=20), strict=True):
        longest = max(lengths[member] for own in turn for member in own)
        assert all(sum(lengths[member] for member in own) <= max(20, longest) for own in turn)


# Micro-batches --------------------------------------------------------------------------------------------------------


def with_common_prompts(seed: int, num: int) -> list[TrainingTrajectory]:
    """Groups of four; a third of the answers' tokens are a tool's, and every number identifies its token."""
    batch = trajectories_of(seed, num=num, tools=True)
    return [
        replace(
            each,
            prompt_ids=batch[each.group * 4].prompt_ids,
            behaviour_logprobs=tuple(-float(index * 100 + place) for place in range(len(each.response_ids))),
            staleness=tuple((index + place) % 5 for place in range(len(each.response_ids))),
        )
        for index, each in enumerate(batch)
    ]


@given(st.integers(0, 50), st.integers(1, 16), st.integers(1, 3), st.sampled_from([1, 30, 60, 1_000]))
def test_every_written_token_is_a_target_after_its_context(
    seed: int, num: int, num_ranks: int, max_tokens: int
) -> None:
    batch = with_common_prompts(seed, num)
    slots = [(number, place) for number, each in enumerate(batch) for place, mine in enumerate(each.written) if mine]
    targets: list[int] = []
    for rank in range(num_ranks):
        step = batch_step(batch, max_tokens=max_tokens, device="cpu", rank=rank, num_ranks=num_ranks)
        for micro_batch in step.micro_batches:
            if micro_batch.idle:
                continue
            check_targets(micro_batch, batch, slots)
            targets += micro_batch.slots_N.tolist()
    assert sorted(targets) == list(range(len(slots)))


def check_targets(
    micro_batch: MicroBatch, batch: Sequence[TrainingTrajectory], slots: Sequence[tuple[int, int]]
) -> None:
    tokens = micro_batch.tokens
    for at, slot in enumerate(micro_batch.slots_N.tolist()):
        number, place = slots[slot]
        each = batch[number]
        assert micro_batch.targets_N[at] == each.response_ids[place]
        assert micro_batch.behaviour_logprobs_N[at] == each.behaviour_logprobs[place]
        assert micro_batch.staleness_N[at] == each.staleness[place]
        assert micro_batch.trajectories_N[at] == number
        assert list(tokens.places)[micro_batch.rows_N[at]] == number
        before = tokens.places[number][: len(each.prompt_ids) + place]
        assert tokens.ids_T[before].tolist() == [*each.prompt_ids, *each.response_ids[:place]]
        assert micro_batch.predicting_N[at] == before[-1]


def test_rank_reads_only_the_tokens_it_trains_on() -> None:
    batch = TrainingBatch.of(with_common_prompts(3, 12))
    shape = {"max_tokens": 60, "device": "cpu", "rank": 1, "num_ranks": 3}
    sound = batch_step(batch, **shape).micro_batches  # type: ignore[arg-type]
    own = sorted({member for plan in sound.plans for member in plan.members})
    assert 0 < len(own) < len(batch)
    elsewhere_R = np.ones(len(batch.tokens.logprobs_R), dtype=np.bool_)
    elsewhere_A = np.ones(len(batch.tokens.ids_A), dtype=np.bool_)
    for member in own:
        start, length = batch.response_starts_N[member], batch.response_lengths_N[member]
        elsewhere_R[start : start + length] = False
        elsewhere_A[batch.first_responses_A + start :][:length] = False
        elsewhere_A[batch.prompt_starts_N[member] :][: batch.prompt_lengths_N[member]] = False
    tokens = replace(
        batch.tokens,
        ids_A=np.where(elsewhere_A, -1, batch.tokens.ids_A),
        logprobs_R=np.where(elsewhere_R, np.float32("nan"), batch.tokens.logprobs_R),
        staleness_R=np.where(elsewhere_R, -1, batch.tokens.staleness_R),
        written_R=np.where(elsewhere_R, ~batch.tokens.written_R, batch.tokens.written_R),
    )
    spoiled = batch_step(replace(batch, tokens=tokens), **shape).micro_batches  # type: ignore[arg-type]
    for one, other in zip(sound, spoiled, strict=True):
        assert torch.equal(one.ids, other.ids)
        for name in ("predicting_N", "targets_N", "behaviour_logprobs_N", "staleness_N", "slots_N"):
            assert torch.equal(getattr(one, name), getattr(other, name))


def test_selection_of_a_batch_shares_its_tokens() -> None:
    batch = TrainingBatch.of(trajectories_of(0))
    few = batch.only(np.array([7, 2]))
    assert few.tokens is batch.tokens and few.groups_N.tolist() == [1, 0]
