"""The plan: what brains need of a job's spec, derived once.

Invariant: `evaluates` alone decides after which steps the held-out prompts are evaluated.
"""

from dataclasses import dataclass
from typing import Final, Self

from engine.policy.schedule import Schedule, schedule_for
from engine.spec.job import JobSpec
from engine.spec.slots import num_weight_slots

# Without its turns; longer than any legitimate answer, so that only hung samples are cut. Short against a job.
SAMPLE_DEADLINE_S: Final = 3_600.0
# So many turns of a sample may each take their full timeout; with more turns, most take less.
LONG_TURNS: Final = 8
# A sample is given up after its second owner.
MAX_OWNERS: Final = 2
CHECKS_PER_DEADLINE: Final = 8
# A lost replica loses at most the tokens of twice this time; each report costs a copy of the new tokens.
STREAM_EVERY_S: Final = 1.0
# A full host preempts; the rest is headroom for the growth of moved samples.
KV_CEILING: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    schedule: Schedule
    steps: int
    groups_per_step: int
    group_size: int
    checkpoint_every: int
    evaluation_prompts: int
    evaluate_every: int
    max_batch: int
    evaluation_samples: int = 1
    """Answers to each held-out prompt."""
    pass_mark: float = 1.0
    """A held-out answer passes with this reward or more."""
    checkpoint_every_s: float = 0.0
    """A checkpoint is also due so many seconds after the last; 0: never."""
    num_spare: int = 0
    """Samples started beyond the group's size; the first to end form the group."""
    min_group: int | None = None
    """The smallest number of graded samples that a group is trained with after failures; None: `group_size`."""
    replaces_failed: bool = False
    """A new sample replaces each failed one once no spare sample is left, at most `group_size` a group."""
    filters: bool = False
    """Groups without a training signal are replaced (dynamic sampling)."""
    sample_deadline_s: float = SAMPLE_DEADLINE_S
    """A group without progress for so long is started again on another replica, and given up when it hangs there
    too."""
    stream_every_s: float = 0.0
    """Seconds between two progress reports of a replica to data; 0: none."""
    kv_ceiling: float = KV_CEILING
    repack_batch: int = 0
    """Sequences that a replica may hold after a repack; 0: `max_batch`."""
    num_relays: int = 1
    """Relays at the start, as far as known; `RelaysPlaced` lists the current ones."""
    num_environments: int = 1
    """Workers that serve prompts, run tools and grade."""
    weight_slots: int = 1
    """Versions that a replica can hold at once."""
    starts_at: int = 0
    """The step of another job's checkpoint that the attempt starts from; 0: it has base weights, or resumes."""

    @property
    def given_up_within_s(self) -> float:
        """Time until a group that hangs on every replica is given up. Data checks at intervals."""
        return MAX_OWNERS * self.sample_deadline_s * (1 + 2 / CHECKS_PER_DEADLINE)

    def __post_init__(self) -> None:
        assert (self.schedule.in_flight == "pin") == (self.weight_slots > 1), "`pin` means more than one slot"

    @classmethod
    def from_spec(cls, spec: JobSpec, *, starts_at: int = 0) -> Self:
        num_slots = num_weight_slots(spec)
        schedule = schedule_for(spec.schedule, weight_slots=num_slots)
        return cls(
            schedule=schedule,
            weight_slots=num_slots if schedule.in_flight == "pin" else 1,
            steps=spec.training.steps,
            groups_per_step=spec.training.prompts_per_step,
            group_size=spec.algorithm.group_size,
            num_spare=spec.algorithm.groups.num_spare,
            min_group=spec.algorithm.least_group,
            replaces_failed=spec.algorithm.groups.on_failure == "replace",
            checkpoint_every=spec.training.checkpoint_every,
            checkpoint_every_s=60 * spec.training.checkpoint_minutes,
            evaluation_prompts=spec.evaluation.prompts,
            evaluate_every=spec.evaluation.every,
            evaluation_samples=spec.evaluation.samples,
            pass_mark=spec.evaluation.pass_mark,
            max_batch=spec.rollout.max_batch,
            num_environments=spec.environment.workers,
            filters=spec.algorithm.name == "dapo" and spec.algorithm.learns_from_rewards,
            sample_deadline_s=SAMPLE_DEADLINE_S + LONG_TURNS * spec.environment.turn_timeout_s,
            stream_every_s=STREAM_EVERY_S,
            starts_at=starts_at,
        )

    @property
    def only_evaluates(self) -> bool:
        """The job evaluates its starting weights once, whatever their step, and ends."""
        return self.steps == 0

    def evaluates(self, step: int) -> bool:
        """Before the job's first step, after the last, and every `evaluate_every` steps."""
        is_in_between = self.evaluate_every > 0 and step % self.evaluate_every == 0
        return self.only_evaluates or step in (0, self.starts_at, self.steps) or is_in_between

    def publishes(self, step: int) -> bool:
        """True if replicas get the weights of this step."""
        return self.schedule.publishes(step) or self.evaluates(step)

    def relay_of(self, replica: int) -> int:
        """The replica's default relay."""
        return replica % self.num_relays

    def checkpoints(self, step: int, *, last_s: float = 0.0) -> bool:
        """`last_s`: seconds since the last checkpoint was started."""
        is_its_time = 0 < self.checkpoint_every_s <= last_s
        return step == self.steps or step % self.checkpoint_every == 0 or is_its_time
