"""The set-up of one simulated run: devices by role, model and schedule, and the resulting costs.

    devices ──▶ training | replicas of several devices each        colocated: all devices do both, one after the other

Invariant: a run depends on its set-up only; the same set-up gives the same run.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Final, Literal

from engine.pipeline.plan import Plan
from engine.pipeline.records import SampleKey
from engine.policy.schedule import Schedule
from engine.sim.costs.constants import AS_THEY_STAND, Book
from engine.sim.costs.decode import DecodeCost
from engine.sim.costs.devices import Device
from engine.sim.costs.environment import Tools
from engine.sim.costs.handover import handover_s
from engine.sim.costs.install import install_s
from engine.sim.costs.lengths import LONGEST_PROMPT, Lengths
from engine.sim.costs.lora import adapter_bytes
from engine.sim.costs.memory import Room, room_for_kv
from engine.sim.costs.models import Model
from engine.sim.costs.prefill import prefill_token_s
from engine.sim.costs.relay import broadcast_s
from engine.sim.costs.slots import SlotCost, Slots
from engine.sim.costs.switch import switch_s
from engine.sim.costs.training import fewest_devices, training_cost
from engine.sim.fleet.work import NO_WORK, Drawing, Modelled, Work

Workload = Literal["math", "tools"]

# Beyond those that are measured, so that nothing ends in what is measured: the job needs more than it does.
STEPS_BEYOND: Final = 5
NEVER: Final = 10**9


@dataclass(frozen=True, kw_only=True)
class Setup:
    device: Device
    model: Model
    schedule: Schedule
    train_devices: int
    rollout_devices: int
    is_colocated: bool = False
    """All devices train and generate; `train_devices` and `rollout_devices` are the same ones."""
    tp: int
    slots: Slots = field(default_factory=Slots)
    """How a replica holds versions."""
    lora_rank: int = 0
    """The rank of the trained adapters; 0: the weights are trained."""
    workload: Workload = "math"
    lengths: Lengths = field(default_factory=Lengths)
    drawn: Drawing | None = None
    """Who draws each sample's work; None: `lengths`, and the tools of the workload. What it draws must be no longer
    than `lengths` allow: the memory is planned by them."""
    book: Book = AS_THEY_STAND
    seed: int = 1
    steps: int = 8
    """Measured."""
    warm_steps: int = 4
    """Before those."""
    groups_per_step: int = 512
    group_size: int = 16
    mini_batch: int = 2_048
    max_batch: int = 256
    """Sequences that a replica runs at once, where its memory allows."""
    train_every_s: float | None = None
    """From one update to the next, hand-over and all, whatever is in the batch; one that comes late makes it longer.
    None: what training costs."""

    @property
    def num_replicas(self) -> int:
        return self.rollout_devices // self.tp

    @property
    def num_devices(self) -> int:
        return self.rollout_devices if self.is_colocated else self.train_devices + self.rollout_devices

    @cached_property
    def tools(self) -> Tools | None:
        return Tools.of(self.book) if self.workload == "tools" else None

    def work(self, key: SampleKey) -> Work:
        if key.group.evaluation is not None:
            return NO_WORK
        return self._drawing.work(self.seed, key)

    @cached_property
    def _drawing(self) -> Drawing:
        return self.drawn or Modelled(lengths=self.lengths, tools=self.tools)

    @cached_property
    def room(self) -> Room:
        return room_for_kv(
            self.device,
            self.model,
            tp=self.tp,
            slots=self.slots,
            at_least_tokens=self.lengths.longest + LONGEST_PROMPT,
            book=self.book,
        )

    @property
    def why_not(self) -> str:
        """Why the set-up does not fit; empty: it fits."""
        if (self.slots.kept == "adapter") != bool(self.lora_rank):
            return "adapters lie side by side in a LoRA job, and in no other one"
        needed = fewest_devices(self.device, self.model, lora_rank=self.lora_rank, book=self.book)
        if self.train_devices < needed:
            return f"training takes {needed} x {self.device.name}, and has {self.train_devices}"
        if self.num_replicas < 1:
            return f"a replica takes {self.tp} x {self.device.name}, and rollouts have {self.rollout_devices}"
        if self.train_every_s is not None and self.is_colocated:
            return "a fixed time between updates is for devices that only train"
        if self.train_every_s is not None and self.train_every_s < self.stall_s:
            return f"a hand-over takes {self.stall_s:.2f} s, and updates are {self.train_every_s:g} s apart"
        return self.room.why_not

    @cached_property
    def decode(self) -> DecodeCost:
        return DecodeCost.of(self.device, self.model, tp=self.tp, book=self.book)

    @cached_property
    def slot_cost(self) -> SlotCost:
        return self.slots.cost(self.decode, self.model, book=self.book)

    @property
    def usual_kv_tokens(self) -> float:
        """The KV tokens that older versions leave free, if one of them is from each of the last steps."""
        return self.room.kv_tokens - self.slot_cost.taken_tokens(self.slots.planned_ages)

    @property
    def sent_bytes(self) -> float | None:
        """The bytes of a version that are sent; None: the whole version."""
        return adapter_bytes(self.model, self.lora_rank) if self.lora_rank else None

    @cached_property
    def prefill_s(self) -> float:
        return prefill_token_s(self.device, self.model, tp=self.tp, book=self.book)

    @cached_property
    def stall_s(self) -> float:
        """Seconds that training pauses at a new version."""
        return 0.0 if self.is_colocated else handover_s(self.model, bytes_sent=self.sent_bytes, book=self.book)

    @cached_property
    def broadcast_s(self) -> float:
        if self.is_colocated:
            return 0.0
        hosts = ceil(self.rollout_devices / self.device.per_host)
        return broadcast_s(self.model, relays=hosts, bytes_sent=self.sent_bytes, book=self.book)

    @cached_property
    def install_s(self) -> float:
        if self.is_colocated:
            return 0.0
        return install_s(self.device, self.model, tp=self.tp, bytes_sent=self.sent_bytes, book=self.book)

    def training_s(self, tokens: float, *, stalled_s: float | None = None) -> float:
        """`stalled_s`: the hand-over's time since the previous update; None: one hand-over."""
        if self.train_every_s is not None:
            return self.train_every_s - (self.stall_s if stalled_s is None else stalled_s)
        samples = self.groups_per_step * self.group_size
        cost = training_cost(
            self.device,
            self.model,
            devices=self.train_devices,
            tokens=tokens,
            updates=max(1, round(samples / self.mini_batch)),
            lora_rank=self.lora_rank,
            book=self.book,
        )
        return cost.total_s + self.switch_s

    @cached_property
    def switch_s(self) -> float:
        if not self.is_colocated:
            return 0.0
        return switch_s(
            self.device,
            self.model,
            devices=self.train_devices,
            tp=self.tp,
            lora_rank=self.lora_rank,
            book=self.book,
        )

    @cached_property
    def plan(self) -> Plan:
        return Plan(
            schedule=self.schedule,
            weight_slots=self.slots.num,
            steps=self.warm_steps + self.steps + STEPS_BEYOND,
            groups_per_step=self.groups_per_step,
            group_size=self.group_size,
            checkpoint_every=NEVER,
            evaluation_prompts=1,
            evaluate_every=0,
            max_batch=self.max_batch,
            repack_batch=min(self.max_batch, self.decode.free_batch) if self.schedule.repack_by == "kv" else 0,
            sample_deadline_s=float(NEVER),
            num_relays=max(1, ceil(self.rollout_devices / self.device.per_host)),
        )

    def with_seed(self, seed: int) -> "Setup":
        return replace(self, seed=seed)
