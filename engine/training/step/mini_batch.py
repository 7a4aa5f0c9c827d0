"""One update of a step: the trajectories that it trains on, and their losses.

    N written tokens of a micro-batch    M written tokens of the step, in its trajectories' order    S trajectories

A batch is cut by whole groups: a prompt is read once for all of its samples, and an update sees a group's good and bad
answers together. All parts have the same number of groups, give or take one, because each part takes its own mean: in a
part with fewer, a trajectory would weigh more. Within that, tokens are balanced, and each part has both long and short
groups, so that no update consists of short answers only. The cut is deterministic, and every pass uses the same parts:
the same batch gives the same step, bit for bit, without a random stream to save.

Invariants:
- losses, and so gradients, of an update's micro-batches and ranks *add up* to the update's (a trainer that averages
  gradients over ranks multiplies by their number);
- an update's mean is over its own trajectories and tokens; their advantages are of the whole step;
- π_start, against which the ratio is clipped and from which a token's age is corrected, has the step's first weights in
  all updates.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithms.advantages import Advantages
from engine.algorithms.loss import LossTokens, policy_loss
from engine.algorithms.values import value_loss
from engine.process.progress import working
from engine.spec.job import AlgorithmSpec
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.step.metrics import Tally
from engine.training.step.micro_batch import MicroBatch, MiniBatch
from engine.training.step.routes import route_sums
from engine.training.step.scoring import TokenScores
from engine.training.step.where import annotate_errors, size_of
from engine.training.step.witness import witnessed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The values fixed before the first update."""

    advantages: Advantages
    """In float32."""
    shares_S: Tensor
    """Each trajectory's share per token in the mean of its update."""
    reference_M: Tensor | None
    teacher_M: Tensor | None
    values_M: Tensor | None
    returns_M: Tensor | None
    start_M: Tensor | None
    """Log-probs by the step's first weights, if a later update needs them. The first mini-batch's are filled in by its
    own first update, which computes them anyway."""

    def advantages_of(self, batch: MicroBatch) -> Tensor:
        values: Tensor = self.advantages.values[batch.slots_N if self.advantages.of_tokens else batch.trajectories_N]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    policy: Tensor
    value: Tensor | None
    is_last: bool
    """Whether it is the last of its update; the same on every rank."""
    size: str
    """The micro-batch's size, for errors in the backward pass."""

    @property
    def of_parts(self) -> tuple[Tensor, ...]:
        """In the order of the trained parts: the policy's, then the critic's if there is one."""
        return (self.policy,) if self.value is None else (self.policy, self.value)


def cut(trajectories: Trajectories, num_parts: int) -> list[list[int]]:
    """Indexes of each part's trajectories, in order. Fewer parts if fewer groups have written tokens."""
    batch, tokens = TrainingBatch.of(trajectories), dict[int, int]()
    groups = batch.groups_N.tolist()
    is_read_N = batch.num_written_N > 0
    for group, num in zip(
        groups, ((batch.prompt_lengths_N + batch.response_lengths_N) * is_read_N).tolist(), strict=True
    ):
        tokens[group] = tokens.get(group, 0) + num
    num_parts = min(num_parts, sum(num > 0 for num in tokens.values()))
    loads, part_of = [0] * num_parts, dict[int, int]()
    longest_first = sorted(tokens, key=tokens.__getitem__, reverse=True)
    for start in range(0, len(longest_first), num_parts):  # one group for each part: the longest to the emptiest
        emptiest_first = sorted(range(num_parts), key=loads.__getitem__)
        for part, group in zip(emptiest_first, longest_first[start : start + num_parts], strict=False):
            part_of[group] = part
            loads[part] += tokens[group]
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for index, group in enumerate(groups):
        parts[part_of[group]].append(index)
    return parts


class UpdateLoss:
    def __init__(
        self,
        algorithm: AlgorithmSpec,
        *,
        policy: Callable[[MicroBatch], TokenScores],
        critic: Callable[[MicroBatch], Tensor] | None,
        tokens: StepTokens,
        tally: Tally,
        learns: bool,
    ) -> None:
        self._algorithm = algorithm
        self._policy, self._critic = policy, critic
        self._tokens = tokens
        self._tally = tally
        self._learns = learns

    def of(self, mini_batch: MiniBatch, *, moved: bool) -> Iterator[MicroLoss]:
        """Yields the losses one by one; the caller's work on a loss counts as part of its micro-batch's progress.
        `moved`: the step has made an update before."""
        number = 0
        for batch in mini_batch.micro_batches:
            with working("micro-batch"), annotate_errors(size_of(batch)):
                if batch.silent:
                    with torch.no_grad():
                        self._policy_loss(batch, mini_batch, moved)
                    continue
                number += 1
                yield MicroLoss(
                    policy=self._policy_loss(batch, mini_batch, moved),
                    value=self._value_loss(batch, mini_batch),
                    is_last=number == mini_batch.num_losses,
                    size=size_of(batch),
                )

    def _policy_loss(self, batch: MicroBatch, mini_batch: MiniBatch, moved: bool) -> Tensor:
        scores, tokens = self._policy(batch), self._tokens
        outcome = policy_loss(
            scores.logprobs_N,
            scores.entropy_N,
            LossTokens(
                behaviour_logprobs_N=batch.behaviour_logprobs_N,
                advantages_N=tokens.advantages_of(batch),
                shares_N=tokens.shares_S[batch.trajectories_N],
                staleness_N=batch.staleness_N,
                rows_N=batch.rows_N,
                num_rows=batch.num_rows,
                reference_logprobs_N=None if tokens.reference_M is None else tokens.reference_M[batch.slots_N],
                teacher_logprobs_N=None if tokens.teacher_M is None else tokens.teacher_M[batch.slots_N],
                step_begin_logprobs_N=tokens.start_M[batch.slots_N] if moved and tokens.start_M is not None else None,
            ),
            spec=self._algorithm,
            num_tokens=mini_batch.num_tokens,
        )
        if not moved and tokens.start_M is not None and not batch.idle:
            tokens.start_M[batch.slots_N] = scores.logprobs_N.detach()
        self._count_gap(batch, scores, moved)
        witnessed(logprobs=scores.logprobs_N, loss=outcome.loss)
        self._tally.count(outcome.sums, outcome.peaks, idle=batch.idle)
        self._tally.count(route_sums(batch.routes_TWk), {}, idle=batch.is_repeated)
        return self._mask_loss(batch, outcome.loss)

    def _count_gap(self, batch: MicroBatch, scores: TokenScores, moved: bool) -> None:
        """Counts nothing once the weights have moved, unless the log-probs by the step's first weights are known."""
        if not moved:
            self._tally.gap.count(batch, scores.logprobs_N, scores.logits_N2)
        elif self._tokens.start_M is not None:
            self._tally.gap.count(batch, self._tokens.start_M[batch.slots_N], scores.logits_N2)

    def _value_loss(self, batch: MicroBatch, mini_batch: MiniBatch) -> Tensor | None:
        tokens = self._tokens
        if self._critic is None:
            return None
        assert tokens.values_M is not None and tokens.returns_M is not None
        outcome = value_loss(
            self._critic(batch),
            tokens.values_M[batch.slots_N],
            tokens.returns_M[batch.slots_N],
            clip=self._algorithm.critic.value_clip,
            num_tokens=mini_batch.num_tokens,
        )
        self._tally.count(outcome.sums, {}, idle=batch.idle)
        witnessed(value_loss=outcome.loss)
        return self._mask_loss(batch, outcome.loss)

    def _mask_loss(self, batch: MicroBatch, loss: Tensor) -> Tensor:
        return loss * 0.0 if batch.idle or not self._learns else loss
