"""The losses of micro-batches out of trajectories: all of a step that does not care who applies gradients.

    step = StepLoss(algorithm, models=…).begin(trajectories)
    for losses in step.losses():            forward passes happen here, one micro-batch at a time
        for loss in losses.of_parts: loss.backward()
    metrics = step.metrics()                only then: it reads what the passes counted

    N written tokens of a micro-batch    M written tokens of the step, in the trajectories' order

Invariants:
- every rank is given all trajectories of the step and takes its share of them;
- losses, and so gradients, of micro-batches and of ranks *add up* to the step's (whoever averages gradients over
  ranks multiplies by their number);
- rewards, advantages and values of the step are fixed before its first loss;
- a trajectory whose reward is not trusted is no part of the step: no loss, no mean and no baseline knows it. Where
  none is trusted, the step looks at all of them and learns nothing;
- every rank makes the same number of passes over each model, in the same order.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.algorithms.advantages import overlong_penalty, token_advantages
from engine.algorithms.loss import LossTokens, k1_cost, policy_loss, token_shares
from engine.algorithms.values import value_loss
from engine.policy.pace import flops_of_forward, flops_of_training
from engine.signs import at_work
from engine.spec.job import AlgorithmSpec
from engine.spec.recipes import RECIPES
from engine.training.micro_batch import BatchedStep, MicroBatch, batch_step, written_places
from engine.training.port import TrainingTrajectory
from engine.training.ranks import Alone, Ranks
from engine.training.scoring import TokenScores
from engine.training.step_metrics import Tally, step_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModels:
    """Functions of a micro-batch. They are called with gradients off where none are needed."""

    policy: Callable[[MicroBatch], TokenScores]
    reference: Callable[[MicroBatch], TokenScores] | None = None
    """Exactly when `needs_reference`."""
    critic: Callable[[MicroBatch], Tensor] | None = None
    """Exactly when `needs_critic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroLoss:
    policy: Tensor
    value: Tensor | None

    @property
    def of_parts(self) -> tuple[Tensor, ...]:
        """In the order of the trained parts: the policy's, and the critic's if there is one."""
        return (self.policy,) if self.value is None else (self.policy, self.value)


def needs_reference(algorithm: AlgorithmSpec) -> bool:
    return algorithm.kl.coefficient > 0.0


def needs_critic(algorithm: AlgorithmSpec) -> bool:
    return RECIPES[algorithm.name].advantage == "critic"


class StepLoss:
    def __init__(
        self,
        algorithm: AlgorithmSpec,
        *,
        models: StepModels,
        micro_batch_tokens: int,
        max_new_tokens: int,
        device: str | torch.device,
        num_weights: int,
        ranks: Ranks | None = None,
    ) -> None:
        assert (models.reference is not None) == needs_reference(algorithm)
        assert (models.critic is not None) == needs_critic(algorithm)
        self._algorithm = algorithm
        self._models = models
        self._micro_batch_tokens = micro_batch_tokens
        self._max_new_tokens = max_new_tokens
        self._device, self._num_weights = device, num_weights
        self._ranks = ranks or Alone()

    def begin(self, given: Sequence[TrainingTrajectory]) -> "Step":
        members = _members(given)
        trajectories = [given[index] for index in members] or [replace(each, reward=0.0) for each in given]
        spec, lengths = self._algorithm, [len(written_places(each)) for each in trajectories]
        penalties = self._penalties(trajectories, lengths)
        advantages = partial(
            token_advantages,
            spec,
            rewards=[each.reward + penalty for each, penalty in zip(trajectories, penalties, strict=True)],
            groups=[each.group for each in trajectories],
            lengths=lengths,
        )
        batched = batch_step(
            trajectories,
            max_tokens=self._micro_batch_tokens,
            device=self._device,
            silent=self._silent(advantages, lengths),
            rank=self._ranks.index,
            num_ranks=self._ranks.count,
        )
        reference_M = self._pass(batched, self._models.reference)
        values_M = self._pass(batched, self._models.critic)
        costs_M = torch.zeros(batched.num_tokens, dtype=torch.float64)
        if reference_M is not None and spec.kl.estimator == "k1":
            now_M = self._pass(batched, self._models.policy)
            assert now_M is not None
            costs_M = spec.kl.coefficient * k1_cost(now_M, reference_M).double().cpu()
        advantages_M, returns_M = advantages(costs_M=costs_M, values_M=values_M)
        shares = token_shares(lengths, mean=RECIPES[spec.name].mean, max_new_tokens=self._max_new_tokens)
        tokens = StepTokens(
            advantages_M=advantages_M.float().to(self._device),
            shares_M=torch.tensor(shares).repeat_interleave(torch.tensor(lengths)).to(self._device),
            reference_M=reference_M,
            values_M=values_M,
            returns_M=None if returns_M is None else returns_M.float().to(self._device),
        )
        tally = Tally(
            trajectories=trajectories,
            penalties=penalties,
            batched=batched,
            advantages_M=advantages_M,
            ranks=self._ranks,
        )
        return Step(
            spec,
            models=self._models,
            batched=batched,
            tokens=tokens,
            tally=tally,
            learned=Learned(members=members, num_given=len(given)),
            at_micro_batch=self._at_micro_batch,
        )

    def _at_micro_batch(self, batch: MicroBatch) -> AbstractContextManager[None]:
        num_models = 1 if self._models.critic is None else 2
        num_flops = num_models * flops_of_training(self._num_weights, len(batch.tokens.ids_T))
        return at_work("micro-batch", num_flops=num_flops, device=str(self._device))

    def _silent(
        self, advantages: Callable[..., tuple[Tensor, Tensor | None]], lengths: Sequence[int]
    ) -> frozenset[int]:
        """Trajectories that the step only looks at: all samples of their prompt were equally good, and nothing else in
        the loss has a gradient of theirs. None if that is all of them: the optimizer takes its step all the same."""
        models = self._models
        if models.reference is not None or models.critic is not None or self._algorithm.entropy_coefficient:
            return frozenset()
        known_M, _ = advantages(costs_M=torch.zeros(sum(lengths), dtype=torch.float64), values_M=None)
        parts = torch.split(known_M, list(lengths))
        silent = frozenset(index for index, part_M in enumerate(parts) if not part_M.any())
        return silent if len(silent) < len(lengths) else frozenset()

    def _penalties(self, trajectories: Sequence[TrainingTrajectory], lengths: Sequence[int]) -> list[float]:
        return [
            overlong_penalty(
                length,
                cut=each.cut,
                max_new_tokens=self._max_new_tokens,
                overlong_tokens=self._algorithm.overlong_tokens,
            )
            for each, length in zip(trajectories, lengths, strict=True)
        ]

    @torch.no_grad()
    def _pass(self, batched: BatchedStep, model: Callable[[MicroBatch], TokenScores | Tensor] | None) -> Tensor | None:
        """One number for each written token of the step, from every rank."""
        if model is None:
            return None
        found_M = torch.zeros(batched.num_tokens, device=self._device)
        for batch in batched.micro_batches:
            num_flops = flops_of_forward(self._num_weights, len(batch.tokens.ids_T))
            with at_work("scoring", num_flops=num_flops, device=str(self._device)):
                found = model(batch)
            if not batch.idle:
                found_M[batch.slots_N] = found if isinstance(found, Tensor) else found.logprobs_N
        return self._ranks.sum(found_M)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    advantages_M: Tensor
    shares_M: Tensor
    reference_M: Tensor | None
    values_M: Tensor | None
    """Before the step."""
    returns_M: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The given trajectories that are part of the step; none: it only looks at them."""

    members: tuple[int, ...]
    num_given: int


class Step:
    def __init__(
        self,
        algorithm: AlgorithmSpec,
        *,
        models: StepModels,
        batched: BatchedStep,
        tokens: StepTokens,
        tally: Tally,
        learned: Learned,
        at_micro_batch: Callable[[MicroBatch], AbstractContextManager[None]],
    ) -> None:
        self._algorithm = algorithm
        self._models = models
        self._batched = batched
        self._tokens = tokens
        self._tally = tally
        self._learned = learned
        self._at_micro_batch = at_micro_batch

    @property
    def advantages(self) -> tuple[float, ...]:
        """One for each trajectory given: the mean over its tokens; 0 for one that is no part of the step."""
        known = dict(zip(self._learned.members, self._tally.trajectory_advantages, strict=False))
        return tuple(known.get(index, 0.0) for index in range(self._learned.num_given))

    @property
    def num_micro_batches(self) -> int:
        """Of which gradients come; the same on every rank."""
        return sum(not batch.silent for batch in self._batched.micro_batches)

    def losses(self) -> Iterator[MicroLoss]:
        """The losses, one by one. Whatever the caller does with one counts to its micro-batch."""
        for batch in self._batched.micro_batches:
            with self._at_micro_batch(batch):
                if not batch.silent:
                    yield MicroLoss(policy=self._policy_loss(batch), value=self._value_loss(batch))
                    continue
                with torch.no_grad():
                    self._policy_loss(batch)

    def metrics(self) -> dict[str, float]:
        """Of the whole step, the same on every rank; not necessarily finite."""
        return step_metrics(self._tally)

    def _policy_loss(self, batch: MicroBatch) -> Tensor:
        scores, tokens = self._models.policy(batch), self._tokens
        outcome = policy_loss(
            scores.logprobs_N,
            scores.entropy_N,
            LossTokens(
                behaviour_logprobs_N=batch.behaviour_logprobs_N,
                advantages_N=tokens.advantages_M[batch.slots_N],
                shares_N=tokens.shares_M[batch.slots_N],
                staleness_N=batch.staleness_N,
                rows_N=batch.rows_N,
                num_rows=batch.num_rows,
                reference_logprobs_N=None if tokens.reference_M is None else tokens.reference_M[batch.slots_N],
            ),
            spec=self._algorithm,
            num_tokens=max(self._batched.num_tokens, 1),
        )
        self._tally.count(outcome.sums, outcome.peaks, idle=batch.idle)
        return self._of(batch, outcome.loss)

    def _value_loss(self, batch: MicroBatch) -> Tensor | None:
        tokens = self._tokens
        if self._models.critic is None:
            return None
        assert tokens.values_M is not None and tokens.returns_M is not None
        outcome = value_loss(
            self._models.critic(batch),
            tokens.values_M[batch.slots_N],
            tokens.returns_M[batch.slots_N],
            clip=self._algorithm.critic.value_clip,
            num_tokens=max(self._batched.num_tokens, 1),
        )
        self._tally.count(outcome.sums, {}, idle=batch.idle)
        return self._of(batch, outcome.loss)

    def _of(self, batch: MicroBatch, loss: Tensor) -> Tensor:
        return loss * 0.0 if batch.idle or not self._learned.members else loss


def _members(given: Sequence[TrainingTrajectory]) -> tuple[int, ...]:
    trusted = tuple(index for index, each in enumerate(given) if each.trusted)
    return trusted if any(written_places(given[index]) for index in trusted) else ()


def is_finite(metrics: dict[str, float]) -> bool:
    """Of the losses; gradients are asked by whoever has them."""
    return all(math.isfinite(metrics.get(name, 0.0)) for name in ("train/loss", "train/value_loss"))
