"""A step: what is fixed before its first update, and its updates one after the other, whoever applies gradients.

    step = StepLoss(settings, models=…).begin(trajectories)
    metrics = step.train(backward=…, update=…)

    backward(losses)     forward passes happen before it, one micro-batch at a time; `losses.of_parts` go backward
    update(finite)       all losses of a mini-batch have gone backward: the optimizer's turn, unless one was not finite

    M written tokens of the step, in the trajectories' order    S trajectories of the step

Invariants:
- every rank knows the numbers of all trajectories of the step, and takes its share of each mini-batch;
- rewards, advantages and values of the step, and the log-probs that it begins with, are fixed before its first update;
- a step of one update computes no log-probs of its beginning: it trains on them;
- a trajectory whose reward is not trusted is no part of the step: no loss, no mean and no baseline knows it. Where
  none is trusted, the step looks at all of them and learns nothing;
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
from engine.signs import at_work
from engine.spec.facts import MAX_TRACED
from engine.spec.recipes import RECIPES
from engine.training.batch import TrainingBatch, Trajectories
from engine.training.settings import TrainerSettings
from engine.training.step.flops import flops_of_sequence
from engine.training.step.gap import GapTally
from engine.training.step.learned import Learned
from engine.training.step.metrics import Tally, UpdateOutcome, step_metrics
from engine.training.step.micro_batch import BatchedStep, MicroBatch, Share, batch_step, itself
from engine.training.step.mini_batch import MicroLoss, StepTokens, UpdateLoss, cut
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.probing import plainly, row_of, tolerance_of
from engine.training.step.ranks import Alone, Ranks
from engine.training.step.rounding import Rounding
from engine.training.step.routes import check_routes
from engine.training.step.scoring import TokenScores
from engine.training.step.where import noted, size_of
from engine.weights.port import Probe
from engine.weights.probe import probe_ids


class StepLoss:
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
        share: Share = itself,
    ) -> None:
        """`num_weights`: those that a token is multiplied with."""
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
        looked = self._look(batched)
        found = advantages(costs_M=looked.costs_M, values_M=looked.values_M)
        if self._algorithm.has_teacher:
            found = replace(found, values=self._algorithm.teacher.reward_weight * found.values)
        gap = GapTally(lengths, device=self._device, rounding=self._rounding)
        tally = Tally(penalties=penalties, batched=batched, advantages=found, gap=gap, ranks=self._ranks)
        tokens = StepTokens(
            advantages=replace(found, values=found.values.float().to(self._device)),
            shares_S=self._shares(lengths, parts).to(self._device),
            reference_M=looked.reference_M,
            teacher_M=looked.teacher_M,
            values_M=looked.values_M,
            returns_M=None if found.returns_M is None else found.returns_M.float().to(self._device),
            start_M=looked.start_M,
        )
        loss = self._loss(tokens, tally, learns=len(learned.members) > 0)
        return Step(loss, batched=batched, passes=self._passes, tally=tally, learned=learned)

    def probe(self, vocab_size: int, max_positions: int) -> Probe:
        """By the policy as it is. Collective."""
        batched = self._batched(row_of(token_ids := probe_ids(vocab_size, max_positions=max_positions)))
        found_M = self._pass(batched, batched.micro_batches, plainly(self._models.policy))
        assert found_M is not None
        logprobs = tuple(found_M.tolist())
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
        """Of each trajectory's tokens, in the mean of its mini-batch."""
        mean, shares = RECIPES[self._algorithm.name].mean, [0.0] * len(lengths)
        for part in parts:
            of_part = token_shares([lengths[i] for i in part], mean=mean, max_new_tokens=self._max_new_tokens)
            for index, share in zip(part, of_part, strict=True):
                shares[index] = share
        return torch.tensor(shares)

    def _silent(
        self, advantages: "FindAdvantages", lengths: Sequence[int], parts: Sequence[Sequence[int]]
    ) -> frozenset[int]:
        """Trajectories that the step only looks at: all samples of their prompt were equally good, and nothing else in
        the loss has a gradient of theirs. None of a mini-batch in which that is all of them: the optimizer makes its
        update all the same."""
        models = self._models
        if models.reference or models.critic or models.teacher or self._algorithm.entropy_coefficient:
            return frozenset()
        found = advantages(costs_M=None, values_M=None)
        by_trajectory = torch.split(found.values, list(lengths)) if found.of_tokens else found.values.unbind()
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

    def _look(self, batched: BatchedStep) -> "Looked":
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
        return Looked(reference_M=reference_M, teacher_M=teacher_M, values_M=values_M, costs_M=costs_M, start_M=start_M)

    def _start(self, batched: BatchedStep, *, known_M: Tensor | None) -> Tensor | None:
        """Of the first mini-batch nothing yet: its own first update knows, whose weights are those of the beginning."""
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
        """One number for each written token of the step, from every rank; 0 for one that is in no micro-batch given."""
        if model is None:
            return None
        found_M = torch.zeros(batched.num_tokens, device=self._device)
        for batch in micro_batches:
            with at_work("scoring"), noted(size_of(batch)):
                found = model(batch)
            if not batch.idle:
                found_M[batch.slots_N] = found if isinstance(found, Tensor) else found.logprobs_N
        return self._ranks.sum(found_M)


FindAdvantages = Callable[..., Advantages]
"""Of `costs_M` and `values_M`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
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
        """One for each trajectory given: the mean over its tokens; 0 for one that is no part of the step."""
        means, learned = np.zeros(self._learned.num_given), self._learned
        if len(learned.members):
            means[learned.members] = self._tally.trajectory_advantages
        return tuple(means.tolist())

    def begun_logprobs(self) -> tuple[NDArray[np.float32], ...]:
        """Collective, after the step. Of each trajectory given, its first tokens' by the weights that the step began
        with; nothing of one that is no part of it, or that only a later update has met."""
        found: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * self._learned.num_given
        members = self._learned.members.tolist() or range(self._learned.num_given)
        for at, logprobs in zip(members, self._tally.begun_logprobs(most=MAX_TRACED), strict=True):
            found[at] = logprobs
        return tuple(found)

    def train(
        self, *, backward: Callable[[MicroLoss], None], update: Callable[[bool], UpdateOutcome]
    ) -> dict[str, float]:
        """The metrics of the whole step, the same on every rank, and finite. `update` is told whether all losses of its
        mini-batch, on all ranks, were finite; it makes the update or leaves everything as it was."""
        for losses in self.updates():
            for each in losses:
                with noted(each.size):
                    backward(each)
            self._tally.close(update(self._tally.has_finite_losses()))
        return step_metrics(self._tally)

    def updates(self) -> Iterator[Iterator[MicroLoss]]:
        """The losses of each update, one after the other."""
        moved = False
        for _ in range(self._passes):
            for mini_batch in self._batched.mini_batches:
                yield self._loss.of(mini_batch, moved=moved)
                moved = True
