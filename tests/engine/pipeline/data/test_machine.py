"""Data together with three replicas, under any order of messages, losses and restarts that Hypothesis finds."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.pipeline.plan import Plan
from engine.pipeline.records import Failure
from tests.engine.pipeline.brain_builders import BESIDE, PLAN
from tests.engine.pipeline.data.data_world import DataWorld


# Short enough that everything ends within a few hundred deliveries, long enough for a checkpoint in the middle.
def small(plan: Plan) -> Plan:
    return replace(plan, steps=6, checkpoint_every=3, evaluation_prompts=1, max_batch=12, stream_every_s=1.0)


INDEX = st.integers(0, 40)
REPLICA = st.integers(0, 2)
# With more losses hardly any sample runs, and no bug is found.
MAX_LOST = 6


class DataAndReplicas(RuleBasedStateMachine):
    plan = small(PLAN)

    def __init__(self) -> None:
        super().__init__()
        self.world = DataWorld(self.plan, num_replicas=3)
        self.num_lost = self.num_failed = 0

    @initialize(rounds=st.integers(1, 6))
    def work_is_under_way(self, rounds: int) -> None:
        self.world.settle(rounds=rounds)
        self.a_while_passes_without_a_fault(0)

    @rule(num_ending=st.integers(0, 6))
    def a_while_passes_without_a_fault(self, num_ending: int) -> None:
        """Long enough for every replica to sync."""
        self.world.ask()
        for _ in range(2):
            self.world.calm()
            self.world.tick(2.1)
        self.world.calm()
        for body, key in self.world.running()[:num_ending]:
            if key in body.running:
                self.world.finish(body, key)

    @rule(seconds=st.sampled_from([0.06, 0.6, 2.1, 6.5]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @precondition(lambda self: self.world.posted)
    @rule(at=INDEX)
    def a_message_comes(self, at: int) -> None:
        self.world.deliver(at % len(self.world.posted))

    @precondition(lambda self: self.world.posted)
    @rule()
    def all_that_is_under_way_comes(self) -> None:
        for _ in range(len(self.world.posted)):
            self.world.deliver(0)

    @precondition(lambda self: self.world.posted)
    @rule(at=INDEX)
    def a_message_is_lost(self, at: int) -> None:
        del self.world.posted[at % len(self.world.posted)]

    @precondition(lambda self: self.world.posted)
    @rule(at=INDEX)
    def a_message_is_doubled(self, at: int) -> None:
        self.world.posted.append(self.world.posted[at % len(self.world.posted)])

    @precondition(lambda self: self.world.running())
    @rule(at=INDEX)
    def a_sample_ends(self, at: int) -> None:
        running = self.world.running()
        self.world.finish(*running[at % len(running)])

    @precondition(lambda self: self.world.unwritten)
    @rule()
    def the_disk_is_done(self) -> None:
        while self.world.unwritten:
            self.world.write()

    @precondition(lambda self: self.num_lost < MAX_LOST)
    @rule(replica=REPLICA)
    def a_replica_is_lost(self, replica: int) -> None:
        self.num_lost += 1
        self.world.lose(replica)

    @precondition(lambda self: self.world.moves())
    @rule(at=INDEX)
    def a_move_is_planned(self, at: int) -> None:
        """The host confirms the reservation in time; from there on anything may happen."""
        moves = self.world.moves()
        self.world.wish_move(*moves[at % len(moves)])
        self.world.deliver(-1)
        self.world.calm()
        self.world.tick(0.06)

    @precondition(lambda self: self.num_lost < MAX_LOST)
    @rule()
    def data_is_lost(self) -> None:
        self.num_lost += 1
        self.world.restart_data()

    @precondition(lambda self: self.num_lost < MAX_LOST and not self.world.is_finished)
    @rule()
    def the_trainer_is_lost(self) -> None:
        self.num_lost += 1
        self.world.lose_trainer()

    @invariant()
    def nothing_is_in_two_places(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """In every case the run ends, and the ledger adds up."""
        self.world.settle(rounds=60)
        self.world.check()
        counts = self.world.data.state.counts()
        assert self.world.is_finished, counts
        num_samples = self.plan.steps * self.plan.groups_per_step * self.plan.group_size
        assert (counts["trained"], counts["open"], counts["failed"]) == (num_samples, 0, 0)


class WithWeightsSideBySide(DataAndReplicas):
    plan = small(BESIDE)


class WithFailedSamples(DataAndReplicas):
    """Few enough failures that each is made up for, by a spare sample or a new one."""

    plan = replace(small(BESIDE), num_spare=1, min_group=1, replaces_failed=True)

    @precondition(lambda self: self.world.running() and self.num_failed < self.plan.group_size + self.plan.num_spare)
    @rule(at=INDEX, is_delivered=st.booleans())
    def a_sample_fails(self, at: int, is_delivered: bool) -> None:
        self.num_failed += 1
        running = self.world.running()
        self.world.finish(*running[at % len(running)], Failure(kind="error", reason="its tool failed"))
        if is_delivered:
            self.world.tick(2.1)
            self.world.calm()


for machine in (DataAndReplicas, WithWeightsSideBySide, WithFailedSamples):
    machine.TestCase.settings = settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestEverySampleIsTrainedAtMostOnceInWholeGroupsWhateverIsLost = DataAndReplicas.TestCase
TestTheSameWithWeightsSideBySide = WithWeightsSideBySide.TestCase
TestFailedSamplesAreMadeUpFor = WithFailedSamples.TestCase
