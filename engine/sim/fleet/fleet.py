"""A fleet: the brains of a whole run on many devices, under a virtual clock, with bodies priced by cost models.

    data ⇄ replicas ⇄ relays (one figure: when a version is everywhere)      repacker ──▶ data      data ⇄ trainer

No message is lost and no process dies: the fault simulation covers that. So there are no heartbeats, and a brain ticks
only when it would have effects. Decisions take no time here; messages do.

Invariants:
- the brains are the ones that run live;
- a message arrives `message_s` after it was sent, in the order of sending.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Effect, ForgetWeights, Persist, PublishWeights, SaveCheckpoint, Send, TrainOn
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import DATA, TRAINER, Address, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import Persisted
from engine.pipeline.messages.to_manager import ReplicaReported, WeightsUpdated
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import VersionAnnounced, WeightsServed
from engine.pipeline.messages.to_trainer import BatchTrained, TrainerLoaded, VersionStored
from engine.pipeline.rollout.brain import GATHER_S, RolloutBrain
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.repack import REPACK_EVERY_S
from engine.sim.bodies.data_and_trainer import manifest_of
from engine.sim.costs.messages import message_s, persist_s
from engine.sim.fleet.outcome import Outcome, Step, measured
from engine.sim.fleet.replica_body import ReplicaBody
from engine.sim.fleet.setup import Setup
from engine.sim.kernel import Kernel

DATA_TICK_S: Final = 1.0
# Longer than a brain waits for an answer before it resends.
LOOK_AGAIN_S: Final = 2.1


MakeBody = Callable[..., Any]
"""Takes the arguments of `ReplicaBody` and returns an object with its methods."""


class Replica:
    """A replica's brain, body and ticks."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self._fleet, self._kernel = fleet, fleet.kernel
        self.brain = RolloutBrain(fleet.setup.plan, replica=number, incarnation=0)
        self.body = fleet.make_body(fleet.setup, kernel=fleet.kernel, tell=self.later, send=fleet.to_replica)
        self._address = rollout_address(number)
        self._ticks_at = float("inf")

    def later(self, delay_s: float, message: Message) -> None:
        self._kernel.after(delay_s, partial(self.receive, message))

    def receive(self, message: Message) -> None:
        looks_again = False
        for effect in self.brain.handle(message, self._kernel.now):
            if isinstance(effect, Send):
                looks_again = looks_again or isinstance(effect.message, WeightsWanted)
                self._fleet.send(self._address, effect)
            else:
                self.body.perform(effect)
        if self.brain.has_news:
            self._tick_in(GATHER_S)
        elif looks_again or self.body.decoding.is_empty:
            self._tick_in(LOOK_AGAIN_S)

    def _tick_in(self, seconds: float) -> None:
        at = self._kernel.now + seconds
        if at < self._ticks_at:
            self._ticks_at = at
            self._kernel.at(at, partial(self._tick, at))

    def _tick(self, at: float) -> None:
        if at == self._ticks_at:  # not replaced by an earlier tick
            self._ticks_at = float("inf")
            self.receive(Tick())


class Fleet:
    def __init__(
        self,
        setup: Setup,
        *,
        make_body: MakeBody = ReplicaBody,
        on_batch: Callable[[TrainOn], object] = lambda batch: None,
    ) -> None:
        """`on_batch` is called with each batch that is trained on."""
        assert not setup.why_not, setup.why_not
        self.setup, self.kernel, self.make_body, self._on_batch = setup, Kernel(), make_body, on_batch
        self._message_s, self._persist_s = message_s(setup.book), persist_s(setup.book)
        self._data, self._trainer = DataBrain(setup.plan), TrainerBrain(setup.plan)
        self.replicas = [Replica(self, number) for number in range(setup.num_replicas)]
        self._repacker = Repacker.for_plan(setup.plan)
        self._newest = NO_WEIGHTS
        self._trained: TrainOn | None = None
        self._began_at = 0.0
        self._stalled_s = 0.0
        """Seconds of hand-over since the last update."""
        self.steps: list[Step] = []
        """The steps that have ended."""
        self.published_at: dict[WeightsId, float] = {}

    def run(self) -> Outcome:
        return self.run_until(self.setup.warm_steps + self.setup.steps)

    def run_until(self, num_steps: int) -> Outcome:
        """The outcome after this number of steps, unmeasured first ones included. The run can continue from there."""
        if not self.kernel.num_events:
            self._begin()
        while len(self.steps) < num_steps:
            if not self.kernel.step():
                raise RuntimeError(f"nothing is left to do after {len(self.steps)} of {num_steps} steps")
        return measured(self.setup, self.steps, num_events=self.kernel.num_events)

    def _begin(self) -> None:
        self._in(0.0, TRAINER, TrainerLoaded(step=0, num_parameters=1, progress=None))
        self.kernel.after(DATA_TICK_S, self._tick_data)
        if self._repacker is not None:
            self.kernel.after(REPACK_EVERY_S, self._tick_repacker)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def to_replica(self, number: int, delay_s: float, message: Message) -> None:
        self.kernel.after(delay_s, partial(self.replicas[number].receive, message))

    def send(self, sender: Address, effect: Send) -> None:
        match effect.to.kind:
            case "driver":
                pass  # display only
            case "manager":
                self._notify_manager(effect.message)
            case "relay":
                self._ask_relay(sender, effect.message)
            case _:
                self._in(self._message_s, effect.to, effect.message)

    def _in(self, delay_s: float, to: Address, message: Message) -> None:
        match to.kind:
            case "rollout":
                self.to_replica(to.number, delay_s, message)
            case "data":
                self.kernel.after(delay_s, partial(self._hear_data, message))
            case "trainer":
                self.kernel.after(delay_s, partial(self._hear_trainer, message))

    # ── data ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear_data(self, message: Message) -> None:
        for effect in self._data.handle(message, self.kernel.now):
            if isinstance(effect, Send):
                self.send(DATA, effect)
            else:
                assert isinstance(effect, Persist), f"data's body does not do {type(effect).__name__}"
                self._in(self._persist_s, DATA, Persisted(serial=effect.serial))

    def _tick_data(self) -> None:
        self._hear_data(Tick())
        self.kernel.after(DATA_TICK_S, self._tick_data)

    # ── trainer and relays ────────────────────────────────────────────────────────────────────────────────────────

    def _hear_trainer(self, message: Message) -> None:
        self._carry_out(deque(self._trainer.handle(message, self.kernel.now)))

    def _carry_out(self, effects: deque[Effect]) -> None:
        while effects:
            effect = effects.popleft()
            match effect:
                case Send():
                    self.send(TRAINER, effect)
                case PublishWeights():
                    self._stalled_s += self.setup.stall_s
                    self.kernel.after(self.setup.stall_s, partial(self._publish, effect.weights, effects))
                    return
                case TrainOn():
                    self._train(effect)
                case SaveCheckpoint() | ForgetWeights():
                    pass
                case _:
                    raise TypeError(f"the trainer's body does not do {type(effect).__name__}")

    def _train(self, effect: TrainOn) -> None:
        self._on_batch(effect)
        self._trained, self._began_at = effect, self.kernel.now
        tokens = sum(each.num_tokens for group in effect.groups for each in group.trajectories)
        seconds = self.setup.training_s(tokens, stalled_s=self._stalled_s)
        self._stalled_s = 0.0
        self.kernel.after(seconds, partial(self._end_step, effect, tokens))

    def _end_step(self, effect: TrainOn, tokens: int) -> None:
        trajectories = [each for group in effect.groups for each in group.trajectories]
        aged = [
            [(effect.lineage.staleness(run.weights, at=effect.step - 1), run.num_tokens) for run in each.runs]
            for each in trajectories
        ]
        staleness = [max(age for age, _ in its) for its in aged]
        for replica in self.replicas:
            replica.body.decoding.advance(self.kernel.now)
        batches = [replica.body.decoding for replica in self.replicas]
        self.steps.append(
            Step(
                ended_at=self.kernel.now,
                training_s=self.kernel.now - self._began_at,
                tokens=tokens,
                num_trajectories=len(trajectories),
                staleness_sum=sum(staleness),
                staleness_max=max(staleness),
                token_staleness_sum=sum(age * num_tokens for its in aged for age, num_tokens in its),
                num_trained=sum(num_tokens for its in aged for _, num_tokens in its),
                busy_s=sum(batch.busy_s for batch in batches),
                held_up_s=sum(batch.held_up_s for batch in batches),
                kv_token_s=sum(batch.kv_token_s for batch in batches),
                num_written=sum(batch.num_written for batch in batches),
                num_prefilled=sum(batch.num_prefilled for batch in batches),
                num_evicted=sum(batch.num_evicted for batch in batches),
                num_moved=self._data.num_moved,
            )
        )
        self._hear_trainer(BatchTrained(step=effect.step, metrics={}, advantages=(0.0,) * len(trajectories)))

    def _publish(self, weights: WeightsId, rest: deque[Effect]) -> None:
        self.kernel.after(self.setup.broadcast_s, partial(self._arrive, weights))
        self._carry_out(rest)

    def _arrive(self, weights: WeightsId) -> None:
        """Everywhere at once."""
        self._newest = max(self._newest, weights)
        self.published_at[weights] = self.kernel.now
        self._in(self._message_s, TRAINER, VersionStored(weights=weights))
        for number in range(len(self.replicas)):
            self.to_replica(number, self._message_s, VersionAnnounced(weights=weights))

    def _ask_relay(self, asking: Address, message: Message) -> None:
        if not isinstance(message, WeightsWanted):
            return
        wanted = message.exact or self._newest
        if NO_WEIGHTS < wanted <= self._newest and wanted != message.held:
            served = WeightsServed(manifest=manifest_of(wanted), payload=None)
            self._in(self._message_s, asking, served)

    # ── the manager, as far as it repacks ─────────────────────────────────────────────────────────────────────────

    def _notify_manager(self, message: Message) -> None:
        if self._repacker is None:
            return
        if isinstance(message, ReplicaReported):
            self._repacker.receive(message)
        elif isinstance(message, WeightsUpdated):
            self._look_at_replicas()
            self._wish(self._repacker.on_updated(message.weights, self.kernel.now))

    def _tick_repacker(self) -> None:
        assert self._repacker is not None
        self._look_at_replicas()
        self._wish(self._repacker.on_tick(self.kernel.now))
        self.kernel.after(REPACK_EVERY_S, self._tick_repacker)

    def _look_at_replicas(self) -> None:
        """Replicas are measured when the manager checks them, not every second."""
        for replica in self.replicas:
            replica.receive(replica.body.measure())

    def _wish(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Send)
            self._in(self._message_s, effect.to, effect.message)
