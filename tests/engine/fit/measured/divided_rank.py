"""One rank of a trainer that FSDP divides, on tensors without memory: its collectives take and give what they would,
and carry nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import HashStore, ProcessGroup  # type: ignore[attr-defined]
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape
from engine.models.families.trained_model import TrainedModel
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.optimized_part import OptimizedPart
from engine.training.parts.lora import Adapter
from engine.training.parts.trained import TrainedPart, critic_part, policy_part
from engine.training.ranks.passes import CriticPass, PolicyPass
from engine.training.ranks.sequence_parallel import Sharers
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.scoring import Critic
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.measured.one_answer import one_answer
from tests.engine.fit.shapes_of_models import decoder_config

CPU = torch.device("cpu")


def peak_of_a_rank(shape: ModelShape, plan: TrainerPlan) -> int:
    """All that is there at its fullest moment: its rows of every model, gradients and moments, two micro-batches of one
    update, and the update."""
    assert plan.division == "fsdp"
    with one_of(plan.num_devices) as world:
        division = _division(plan, world)
        batch = _part_of_one_answer(plan, world)
        with FakeTensorMode(allow_non_fake_inputs=True), LiveBytes() as live:
            _Rank(shape, plan, division).make_a_step(batch)
        peak: int = live.peak
        return peak


def sent_by_a_rank(shape: ModelShape, plan: TrainerPlan) -> int:
    """For one micro-batch."""
    with one_of(plan.num_devices) as world:
        division = _division(plan, world)
        batch = _part_of_one_answer(plan, world)
        with FakeTensorMode(allow_non_fake_inputs=True):
            rank = _Rank(shape, plan, division)
            with _Sent() as sent:
                rank.make_a_pass(batch)
        return int(sent.num_bytes)


def _division(plan: TrainerPlan, world: World) -> Division:
    gathered_in = torch.bfloat16 if plan.products == "bfloat16" else torch.float32
    each, ranks = plan.num_shards, list(range(plan.num_devices))
    hosts = [ranks[first : first + each] for first in range(0, plan.num_devices, each)]
    return Division(world, CPU, gathered_in, Copies.of(hosts, own_rank=0), sums_once=plan.sums_once)


class _Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of what is whole before or after a collective, a rank sends all but its own part; of a sum that all ranks get, a
    part to each, and its own part of the sum back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0.0

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = call.overloadpacket.__name__
        if call.namespace == "c10d" and name in ("_allgather_base_", "_reduce_scatter_base_", "allreduce_"):
            group = next(ProcessGroup.unbox(each) for each in given if isinstance(each, torch.ScriptObject))
            whole = (
                sum(each.nbytes for each in given[0])
                if name == "allreduce_"
                else max(each.nbytes for each in given[:2])
            )
            self.num_bytes += (1 + (name == "allreduce_")) * whole * (group.size() - 1) / group.size()
        return call(*given, **(named or {}))


@contextmanager
def one_of(num_ranks: int) -> Iterator[World]:
    """Rank 0."""
    torch_distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        yield World(rank=0, num_ranks=num_ranks, store=HashStore(), address="", timeout_s=60.0)
    finally:
        torch_distributed.destroy_process_group()


def _part_of_one_answer(plan: TrainerPlan, world: World) -> MicroBatch:
    """This rank's part of it."""
    batch = one_answer(plan.pass_tokens)
    sharers = plan.sequence_parallel
    return Sharers(world, num_sharers=sharers).share(batch) if sharers > 1 else batch


class _Rank:
    def __init__(self, shape: ModelShape, plan: TrainerPlan, division: Division) -> None:
        self._shape, self._plan, self._division = shape, plan, division
        spec = TrainerSpec(compute_dtype=plan.products, activations=plan.activations, lora_rank=plan.lora_rank)
        self._settings = TrainerSettings(
            optimizer=OptimizerSpec(moments=plan.moments),
            algorithm=AlgorithmSpec(),
            trainer=spec,
            num_steps=1,
            temperature=1.0,
            max_new_tokens=1,
            seed=0,
        )
        self._parts: list[OptimizedPart] = []
        self._trained = [self._policy()]
        if plan.has_critic:
            self._trained.append(self._critic())
        self._asked = [self._frozen(shape, torch.float32)] if plan.has_reference and not plan.lora_rank else []
        if plan.teacher is not None:
            self._asked.append(self._frozen(plan.teacher, decoder_config(plan.teacher).dtype))

    def make_a_step(self, batch: MicroBatch) -> None:
        with torch.no_grad():
            for ask in self._asked:
                ask(batch)
        for is_last in (False, False, True) if self._plan.sums_once else (True, True):
            self._division.begin_backward(is_last=is_last)
            self.make_a_pass(batch)
        if self._plan.moments == "float32":  # of others it takes pieces, by numbers that are not here
            for part in self._parts:
                part.take_gradients()  # as `clip` does, which needs numbers
                part.step(1.0)

    def make_a_pass(self, batch: MicroBatch) -> None:
        losses = [numbers.sum() for numbers in [forward(batch) for forward in self._trained]]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]

    def _policy(self) -> Callable[[MicroBatch], Tensor]:
        model = self._model(self._shape)
        adapter = Adapter.from_spec(model, self._settings.trainer, base=Path("base"), device=CPU)
        whole_pass = PolicyPass(model, self._settings)
        self._division.divide(whole_pass, model)
        self._optimized(whole_pass, policy_part(model, adapter, self._settings.optimizer))
        return lambda batch: whole_pass(batch)[0]

    def _critic(self) -> Callable[[MicroBatch], Tensor]:
        critic = Critic(self._model(self._shape))
        whole_pass = CriticPass(critic, self._settings)
        self._division.divide(whole_pass, critic.trunk)
        self._optimized(whole_pass, critic_part(critic, self._settings.algorithm))
        return whole_pass

    def _frozen(self, shape: ModelShape, dtype: torch.dtype) -> nn.Module:
        model = self._model(shape, dtype).requires_grad_(False)
        whole_pass = PolicyPass(model, self._settings)
        self._division.divide(whole_pass, model)
        return whole_pass

    def _model(self, shape: ModelShape, dtype: torch.dtype = torch.float32) -> Any:
        model: TrainedModel = self._division.empty_model(decoder_config(shape), dtype)
        model.hold_activations(self._plan.activations)
        return model

    def _optimized(self, whole_pass: nn.Module, part: TrainedPart) -> None:
        self._parts.append(OptimizedPart(part, whole_pass, self._settings.optimizer, self._division))
        for own in self._parts[-1]._own.values():
            self._parts[-1]._optimizer.reset(own, num_updates=0)
