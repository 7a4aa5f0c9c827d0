"""The oracle: keeps its own book of what the brains did, and objects at once.

Invariants held after every event (RELIABILITY.md, section 6): a sample is trained at most once (I1); groups are whole
(I2); one version a trajectory, and a published one (I3); staleness within the cap (I4); a version is served only
whole (I6); a checkpoint's set of ordinals is what was ended; and at the end everything adds up (I12: it ends at all).
"""

from engine.pipeline.ledger import IntervalSet
from engine.pipeline.plan import Plan
from engine.pipeline.records import CompleteGroup, DataProgress, SampleKey
from engine.pipeline.reports import EvaluationReported, FaultReported


class InvariantBroken(AssertionError):
    """The brains did something that must never happen."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


class Oracle:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.trained: set[SampleKey] = set()
        self.trained_steps = 0
        self.published: set[int] = set()
        self.staleness: list[int] = []
        self.evaluated: list[EvaluationReported] = []
        self.faults: list[FaultReported] = []
        self.ledger: dict[str, int] = {}

    def on_train(self, step: int, groups: tuple[CompleteGroup, ...]) -> None:
        demand(step == self.trained_steps + 1, f"step {step} after step {self.trained_steps}")
        demand(len(groups) == self._plan.groups_per_step, f"step {step} has {len(groups)} groups")
        for group in groups:
            samples = [trajectory.key.sample for trajectory in group.trajectories]
            demand(samples == list(range(self._plan.group_size)), f"group {group.key} is not whole: {samples}")
            for trajectory in group.trajectories:
                self._on_train_one(step, trajectory.key, trajectory.version, trajectory.failure)
        self.trained_steps = step

    def _on_train_one(self, step: int, key: SampleKey, version: int, failure: str) -> None:
        demand(key not in self.trained, f"{key} is trained twice")
        demand(key.group.evaluation is None, f"{key} of an evaluation is trained on")
        demand(not failure, f"{key} has no reward and is trained on")
        demand(version in self.published, f"{key} is of version {version}, which was never published")
        staleness = step - 1 - version
        cap = self._plan.schedule.max_staleness
        demand(staleness >= 0, f"{key} is of version {version}, newer than step {step} consumes")
        demand(cap is None or staleness <= cap, f"{key} is {staleness} versions old, the cap is {cap}")
        self.trained.add(key)
        self.staleness.append(staleness)

    def on_install(self, *, running_versions: set[int]) -> None:
        demand(not running_versions, f"weights installed under running sequences of {running_versions}")

    def on_serve(self, version: int, *, is_whole: bool) -> None:
        demand(version in self.published, f"version {version} served, never published")
        demand(is_whole, f"version {version} served, not whole")

    def on_checkpoint(self, step: int, progress: DataProgress) -> None:
        demand(step == self.trained_steps, f"checkpoint of step {step} at step {self.trained_steps}")
        ended = IntervalSet(progress.ended)
        trained = {key.group.ordinal for key in self.trained}
        demand(all(ordinal in ended for ordinal in trained), f"checkpoint {step} forgets trained prompts")
        counts = dict(progress.ledger)
        demand(counts["trained"] == len(self.trained), f"checkpoint {step} counts {counts}")
        num_ended = sum(1 for _ in ended) * self._plan.group_size
        demand(num_ended == sum(counts.values()), f"checkpoint {step}: {num_ended} samples ended, counts {counts}")

    def on_end(self) -> None:
        steps, per_step = self._plan.steps, self._plan.groups_per_step * self._plan.group_size
        demand(self.trained_steps == steps, f"ended after {self.trained_steps} of {steps} steps")
        demand(self.ledger.get("trained") == steps * per_step, f"the ledger says {self.ledger}")
        due = [step for step in range(steps + 1) if self._plan.evaluates(step)]
        versions = [report.version for report in self.evaluated]
        demand(len(set(versions)) == len(versions), f"evaluated twice: {versions}")
        excused = {fault.component for fault in self.faults}  # not one answer was graded: a fault, and no mean
        missing = [step for step in due if step not in versions and f"evaluation/{step}" not in excused]
        demand(not missing, f"evaluated {versions}, due were {due}")
