"""A step: the values fixed before its first update, then its updates, for any trainer that applies gradients.

    step = StepFactory(settings, models=…).begin(trajectories)
    metrics = step.train(backward=…, update=…)

    backward(losses)     called after each micro-batch's forward pass; runs the backward passes of `losses.of_parts`
    update(finite)       called after all backward passes of a mini-batch; applies the update if `finite`

    M written tokens of the step, in the trajectories' order    S trajectories of the step

Invariants:
- every rank knows the numbers of all trajectories of the step, and computes its share of each mini-batch;
- rewards, advantages and values of the step, and the log-probs by its first weights, are fixed before its first update;
- a step of one update has no extra pass for these log-probs: its own training pass computes them;
- a trajectory with an untrusted reward is excluded from losses, means and baselines. If none is trusted, the step
  measures all trajectories and trains on nothing;
- every rank makes the same updates, and the same number of passes over each model, in the same order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.algorithms.advantages import Advantages, find_advantages, overlong_penalty
from engine.algorithms.corrections import measures_from_start
from engine.algorithms.loss import k1_cost, token_shares
from engine.models.routes import DENSE, RouteFormat
from engine.process.progress import working
from engine.spec.facts import MAX_TRACED
from engine.spec.recipes import RECIPES
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.settings import TrainerSettings
from engine.training.step.flops import flops_of_sequence
from engine.training.step.gap import GapTally
from engine.training.step.learned import Learned
from engine.training.step.metrics import Tally, UpdateOutcome, loss_series
from engine.training.step.micro_batch import BatchedStep, MicroBatch, Share, batch_step, whole_batch
from engine.training.step.mini_batch import MicroLoss, StepTokens, UpdateLoss, cut
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.probing import at_temperature_1, row_of, tolerance_of
from engine.training.step.ranks import Alone, Ranks
from engine.training.step.rounding import Rounding
from engine.training.step.routes import check_routes
from engine.training.step.scoring import TokenScores
from engine.training.step.where import annotate_errors, size_of
from engine.weights.port import Probe
from engine.weights.probe import probe_ids


class StepFactory:
    def __init__(
        self,
        settings: TrainerSettings,
        *,
        models: StepModels,
        device: str | torch.device,
        num_weights: int,
        attention_width: int,
        route_format: RouteFormat = DENSE,
        rounding: Rounding,
        ranks: Ranks | None = None,
        share: Share = whole_batch,
    ) -> None:
        """`num_weights`: the weights that one token is multiplied with."""
        algorithm = settings.algorithm
        assert (models.reference is not None) == needs_reference(algorithm)
        assert (models.teacher is not None) == algorithm.has_teacher
        assert (models.critic is not None) == needs_critic(algorithm)
        self._algorithm = algorithm
        self._models = models
        self._micro_batch_tokens = settings.trainer.micro_batch_tokens
        self._max_new_tokens = settings.max_new_tokens
        self._device, self._rounding = device, rounding
        self._work_of = partial(flops_of_sequence, num_weights, attention_width)
        self._mini_batches, self._passes = settings.mini_batches, settings.passes
        self._ranks, self._share = ranks or Alone(), share
        self._route_format = route_format

    def begin(self, trajectories: Trajectories) -> "Step":
        given = TrainingBatch.of(trajectories)
        check_routes(given, self._route_format)
        learned = Learned.of(given, masks_truncated=self._algorithm.mask_truncated)
        batch = given.only(learned.members) if len(learned.members) else given.without_rewards()
        lengths = batch.num_written_N.tolist()
        penalties = self._penalties(batch, lengths)
        advantages = partial(
            find_advantages,
            self._algorithm,
            rewards=(batch.rewards_N + penalties).tolist(),
            groups=batch.groups_N.tolist(),
            lengths=lengths,
        )
        parts = cut(batch, self._mini_batches)
        batched = self._batched(batch, parts=parts, silent=self._silent(advantages, lengths, parts))
        fixed = self._score(batched)
        known = advantages(costs_M=fixed.costs_M, values_M=fixed.values_M)
        if self._algorithm.has_teacher:
            known = replace(known, values=self._algorithm.teacher.reward_weight * known.values)
        gap = GapTally(lengths, device=self._device, rounding=self._rounding)
        tally = Tally(penalties=penalties, batched=batched, advantages=known, gap=gap, ranks=self._ranks)
        tokens = StepTokens(
            advantages=replace(known, values=known.values.float().to(self._device)),
            shares_S=self._shares(lengths, parts).to(self._device),
            reference_M=fixed.reference_M,
            teacher_M=fixed.teacher_M,
            values_M=fixed.values_M,
            returns_M=None if known.returns_M is None else known.returns_M.float().to(self._device),
            start_M=fixed.start_M,
        )
        loss = self._loss(tokens, tally, learns=len(learned.members) > 0)
        return Step(loss, batched=batched, passes=self._passes, tally=tally, learned=learned)

    def probe(self, vocab_size: int, max_positions: int) -> Probe:
        """A probe by the current policy. Collective."""
        batched = self._batched(row_of(token_ids := probe_ids(vocab_size, max_positions=max_positions)))
        logprobs_M = self._pass(batched, batched.micro_batches, at_temperature_1(self._models.policy))
        assert logprobs_M is not None
        logprobs = tuple(logprobs_M.tolist())
        tolerance = tolerance_of(logprobs, of_terms=self._rounding.of_terms)
        return Probe(token_ids=token_ids, logprobs=logprobs, tolerance=tolerance)

    def _batched(
        self, batch: TrainingBatch, *, parts: Sequence[Sequence[int]] = (), silent: frozenset[int] = frozenset()
    ) -> BatchedStep:
        return batch_step(
            batch,
            max_tokens=self._micro_batch_tokens,
            device=self._device,
            parts=parts,
            silent=silent,
            rank=self._ranks.index,
            num_ranks=self._ranks.count,
            share=self._share,
            work_of=self._work_of,
            route_format=self._route_format,
        )

    def _loss(self, tokens: StepTokens, tally: Tally, *, learns: bool) -> UpdateLoss:
        return UpdateLoss(
            self._algorithm,
            policy=self._models.policy,
            critic=self._models.critic,
            tokens=tokens,
            tally=tally,
            learns=learns,
        )

    def _shares(self, lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> Tensor:
        """Each trajectory's share per token in the mean of its mini-batch."""
        mean, shares = RECIPES[self._algorithm.name].mean, [0.0] * len(lengths)
        for part in parts:
            of_part = token_shares([lengths[i] for i in part], mean=mean, max_new_tokens=self._max_new_tokens)
            for index, share in zip(part, of_part, strict=True):
                shares[index] = share
        return torch.tensor(shares)

    def _silent(
        self, advantages: "FindAdvantages", lengths: Sequence[int], parts: Sequence[Sequence[int]]
    ) -> frozenset[int]:
        """Trajectories without gradient, which the step only measures: all samples of their prompt have equal rewards,
        and no other term of the loss applies. Empty for a mini-batch in which all are such: the optimizer still makes
        its update."""
        models = self._models
        if models.reference or models.critic or models.teacher or self._algorithm.entropy_coefficient:
            return frozenset()
        known = advantages(costs_M=None, values_M=None)
        by_trajectory = torch.split(known.values, list(lengths)) if known.of_tokens else known.values.unbind()
        loud = {index for index, own in enumerate(by_trajectory) if own.any()}
        return frozenset(index for part in parts if loud.intersection(part) for index in part if index not in loud)

    def _penalties(self, batch: TrainingBatch, lengths: Sequence[int]) -> list[float]:
        return [
            overlong_penalty(
                length,
                cut=was_cut,
                max_new_tokens=self._max_new_tokens,
                overlong_tokens=self._algorithm.overlong_tokens,
            )
            for was_cut, length in zip(batch.cut_N.tolist(), lengths, strict=True)
        ]

    # Passes without gradients, before the first update ------------------------------------------------------------

    def _score(self, batched: BatchedStep) -> "Scored":
        kl, every = self._algorithm.kl, batched.micro_batches
        reference_M = self._pass(batched, every, self._models.reference)
        teacher_M = self._pass(batched, every, self._models.teacher)
        values_M = self._pass(batched, every, self._models.critic)
        costs_M = now_M = None
        if reference_M is not None and kl.estimator == "k1":
            now_M = self._pass(batched, every, self._models.policy)
            assert now_M is not None
            costs_M = kl.coefficient * k1_cost(now_M, reference_M).double().cpu()
        start_M = self._start(batched, known_M=now_M)
        return Scored(reference_M=reference_M, teacher_M=teacher_M, values_M=values_M, costs_M=costs_M, start_M=start_M)

    def _start(self, batched: BatchedStep, *, known_M: Tensor | None) -> Tensor | None:
        """Log-probs by the step's first weights for later updates; the first mini-batch's own update adds its own."""
        first, *others = batched.mini_batches
        if not measures_from_start(self._algorithm.corrects_by) or (self._passes == 1 and not others):
            return None
        if known_M is not None:
            return known_M
        return self._pass(batched, batched.micro_batches[len(first.micro_batches) :], self._models.policy)

    @torch.no_grad()
    def _pass(
        self,
        batched: BatchedStep,
        micro_batches: Sequence[MicroBatch],
        model: Callable[[MicroBatch], TokenScores | Tensor] | None,
    ) -> Tensor | None:
        """One number per written token of the step, from all ranks; 0 for tokens in none of the micro-batches."""
        if model is None:
            return None
        scores_M = torch.zeros(batched.num_tokens, device=self._device)
        for batch in micro_batches:
            with working("scoring"), annotate_errors(size_of(batch)):
                scores = model(batch)
            if not batch.idle:
                scores_M[batch.slots_N] = scores if isinstance(scores, Tensor) else scores.logprobs_N
        return self._ranks.sum(scores_M)


FindAdvantages = Callable[..., Advantages]
"""Takes `costs_M` and `values_M`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    reference_M: Tensor | None
    teacher_M: Tensor | None
    values_M: Tensor | None
    costs_M: Tensor | None
    start_M: Tensor | None


class Step:
    def __init__(self, loss: UpdateLoss, *, batched: BatchedStep, passes: int, tally: Tally, learned: Learned) -> None:
        self._loss = loss
        self._batched = batched
        self._passes = passes
        self._tally = tally
        self._learned = learned

    @property
    def advantages(self) -> tuple[float, ...]:
        """One per given trajectory: the mean over its tokens; 0 for a trajectory that is not trained on."""
        means, learned = np.zeros(self._learned.num_given), self._learned
        if len(learned.members):
            means[learned.members] = self._tally.trajectory_advantages
        return tuple(means.tolist())

    def begun_logprobs(self) -> tuple[NDArray[np.float32], ...]:
        """After the step: log-probs of each given trajectory's first tokens by the step's first weights; empty for a
        trajectory that is not trained on, or that only a later update has computed. Collective."""
        of_each: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * self._learned.num_given
        members = self._learned.members.tolist() or range(self._learned.num_given)
        for at, logprobs in zip(members, self._tally.begun_logprobs(most=MAX_TRACED), strict=True):
            of_each[at] = logprobs
        return tuple(of_each)

    def train(
        self, *, backward: Callable[[MicroLoss], None], update: Callable[[bool], UpdateOutcome]
    ) -> dict[str, float]:
        """Makes all updates and returns the step's metrics, finite and the same on every rank. `update` gets whether
        all losses of its mini-batch, on all ranks, were finite; otherwise it must leave everything as it was."""
        for losses in self.updates():
            for each in losses:
                with annotate_errors(each.size):
                    backward(each)
            self._tally.close(update(self._tally.has_finite_losses()))
        return loss_series(self._tally)

    def updates(self) -> Iterator[Iterator[MicroLoss]]:
        """The losses of each update, in order."""
        moved = False
        for _ in range(self._passes):
            for mini_batch in self._batched.mini_batches:
                yield self._loss.of(mini_batch, moved=moved)
                moved = True
