"""The oracle: keeps its own record of what the brains did, and raises on a violation.

Invariants checked after every event: a sample is trained at most once into the current weights (I1); groups are whole
(I2); a trajectory has one version if the schedule promises it, a published one, which stays in its slot until the
trajectory has ended (I3); staleness agrees with the tree of weights and is within the cap (I4); a lease belongs to one
replica, which keeps its limits, and a sample continues only from tokens and routes of a single life, and is trained
with the routes of a life that ended, or with none (I5); a version is served only whole (I6); only the current trainer
publishes (I7); acknowledgements and the batch of each step survive data's death; a checkpoint's ordinals are those of
ended prompts; it has the evaluation of version 0 as due until the log has its end; and everything ends and adds up
(I12).
"""

# Over budget: one record of the run, which every invariant reads.

from collections.abc import Iterable, Sequence
from typing import Final

from engine.pipeline.data.ledger import IntervalSet
from engine.pipeline.data.state import DataState
from engine.pipeline.journal import EvaluationClosed, Record, TrainerForked
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_driver import AnswersCounted, EvaluationReported, FaultReported
from engine.pipeline.messages.to_rollout import SequencesHandedOver, WorkGranted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import CompleteGroup, DataProgress, GroupTask, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import BASE_WEIGHTS, Lineage, WeightsId

Path = tuple[int, ...]
"""The serial numbers of the steps that made some weights, from the start."""


_WORDS: Final = bytes(range(256))


def words(life: int, start: int, stop: int) -> bytes:
    """The tokens at these positions in this life of a sample: each is a byte that encodes life and position."""
    first, num_words = (life + start) % 256, stop - start
    return (_WORDS * ((first + num_words) // 256 + 1))[first : first + num_words]


class InvariantBroken(AssertionError):
    """The brains did something that must never happen."""


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantBroken(what)


class Oracle:
    def __init__(self, plan: Plan, *, start_step: int = 0, base_is_due: bool = False) -> None:
        """`start_step`: the step of the checkpoint that the run begins with. `base_is_due`: no earlier attempt has
        evaluated version 0."""
        self._plan, self._start_step, self._base_is_due = plan, start_step, base_is_due
        self._is_base_evaluated = start_step > 0 and not base_is_due
        """By the log: a checkpoint may only then leave it out."""
        self._epoch = 0
        self._paths: dict[WeightsId, Path] = {}
        self._saved_paths: dict[int, Path] = {start_step: tuple(range(start_step))}
        self._now: Path = ()
        self._trained: list[frozenset[SampleKey]] = [frozenset()] * start_step
        """By serial number of the step; steps of earlier attempts are empty."""
        self._first_batch: dict[int, frozenset[SampleKey]] = {}
        self._batches: dict[tuple[int, int], frozenset[SampleKey]] = {}
        self._leases: dict[tuple[SampleKey, int], int] = {}
        self._acknowledged: dict[SampleKey, Trajectory] = {}
        self._delivered: dict[SampleKey, Trajectory] = {}
        self._lives: dict[SampleKey, list[bytes]] = {}
        """The tokens that each life of a sample started from: none, or those of an earlier life."""
        self._routes: dict[SampleKey, set[bytes]] = {}
        """The routes of each life that ended."""
        self.trained_steps = 0
        self.published: set[WeightsId] = set()
        self.staleness: list[int] = []
        self.num_moved = self.num_unrouted = 0
        self.num_carried_on = 0
        """Installs under running samples, which continued on the new weights."""
        self.counted: list[AnswersCounted] = []
        self.evaluated: list[EvaluationReported] = []
        self.faults: list[FaultReported] = []
        self.ledger: dict[str, int] = {}
        self.left: set[tuple[Address, int]] = set()
        """Replicas that reported that they left, with their incarnations."""

    # ── the trainer ───────────────────────────────────────────────────────────────────────────────────────────────

    def on_trainer(self, epoch: int, step: int) -> None:
        """A new incarnation has loaded the checkpoint of this step."""
        self._epoch, self.trained_steps, self._now = epoch, step, self._saved_paths[step]

    def on_base_copied(self, *, by: int) -> None:
        demand(by == self._epoch, f"the base weights copied by epoch {by}, epoch {self._epoch} lives")
        self.published.add(BASE_WEIGHTS)
        self._paths[BASE_WEIGHTS] = ()

    def on_publish(self, weights: WeightsId, *, by: int) -> None:
        demand(by == self._epoch == weights.epoch, f"{weights} published by epoch {by}, epoch {self._epoch} lives")
        demand(weights.version == self.trained_steps, f"{weights} published after step {self.trained_steps}")
        self.published.add(weights)
        self._paths[weights] = self._now

    def on_train(self, epoch: int, step: int, groups: Sequence[CompleteGroup], lineage: Lineage) -> None:
        demand(epoch == self._epoch, f"epoch {epoch} trains, epoch {self._epoch} lives")
        demand(step == self.trained_steps + 1, f"step {step} after step {self.trained_steps}")
        demand(len(groups) == self._plan.groups_per_step, f"step {step} has {len(groups)} groups")
        before = {key for serial in self._now for key in self._trained[serial]}
        ordinals_before = {key.group.ordinal for key in before}
        for group in groups:
            samples = [trajectory.key.sample for trajectory in group.trajectories]
            least, size = self._plan.min_group or self._plan.group_size, self._plan.group_size
            demand(least <= len(samples) <= size, f"group {group.key} is not whole: {samples}")
            demand(group.key.ordinal not in ordinals_before, f"{group.key} is trained twice")
            for trajectory in group.trajectories:
                self._on_train_one(step, trajectory, lineage)
        keys = frozenset(trajectory.key for group in groups for trajectory in group.trajectories)
        demand(len(keys) == sum(len(each.trajectories) for each in groups), f"step {step} has a sample twice")
        self._check_batch(step, keys)
        self._trained.append(keys)
        self._now = (*self._now, len(self._trained) - 1)
        self.trained_steps = step

    def _on_train_one(self, step: int, trajectory: Trajectory, lineage: Lineage) -> None:
        key, schedule = trajectory.key, self._plan.schedule
        demand(key.group.evaluation is None, f"{key} of an evaluation is trained on")
        demand(not trajectory.failure, f"{key} has no reward and is trained on")
        demand(schedule.mixes_versions or not trajectory.runs, f"{key} has versions {trajectory.runs}")
        routes = trajectory.content.routes.data if trajectory.content is not None else b""
        is_routed = routes in self._routes.get(key, ())
        demand(is_routed or not routes, f"{key} is trained with routes {routes.hex()} of no life of it")
        self.num_unrouted += not is_routed
        if trajectory.runs:
            num_tokens = sum(run.num_tokens for run in trajectory.runs)
            demand(num_tokens == trajectory.num_tokens, f"{key}: the versions are of {num_tokens} tokens")
        for weights in trajectory.writers:
            demand(weights in self.published, f"{key} is of {weights}, which was never published")
            staleness = _distance(self._paths[weights], self._now)
            reported = lineage.staleness(weights, at=step - 1)
            demand(reported == staleness, f"{key} is {staleness} steps away, the lineage has {reported}")
            cap = schedule.max_staleness
            demand(cap is None or staleness <= cap, f"{key} is {staleness} versions old, the cap is {cap}")
            self.staleness.append(staleness)

    def _check_batch(self, step: int, keys: frozenset[SampleKey]) -> None:
        """Without staleness and lead, losses in between must not change a batch."""
        plan = self._plan
        is_exact = plan.schedule.lead_steps == 0 and plan.schedule.window_steps == 1
        if is_exact and not plan.num_spare and not any(_gave_up(fault) for fault in self.faults):
            first = self._first_batch.setdefault(step, keys)
            demand(first == keys, f"step {step} got another batch than the first time")

    def on_checkpoint(self, epoch: int, step: int, progress: DataProgress) -> None:
        demand(epoch == self._epoch, f"epoch {epoch} saves, epoch {self._epoch} lives")
        demand(step == self.trained_steps, f"checkpoint of step {step} at step {self.trained_steps}")
        ended = IntervalSet(progress.ended)
        trained = {key for serial in self._now for key in self._trained[serial]}
        forgotten = {key.group.ordinal for key in trained if key.group.ordinal not in ended}
        demand(not forgotten, f"checkpoint {step} forgets the trained prompts {sorted(forgotten)}")
        counts = dict(progress.ledger)
        demand(counts["trained"] == len(trained), f"checkpoint {step} of {len(trained)} samples counts {counts}")
        num_ended = sum(1 for _ in ended) * self._plan.group_size
        demand(num_ended == sum(counts.values()), f"checkpoint {step}: {num_ended} samples ended, counts {counts}")
        is_known = progress.base_is_due or self._is_base_evaluated
        demand(is_known, f"checkpoint {step} has version 0 as evaluated, which no log shows")

    def on_saved(self, epoch: int, step: int) -> None:
        self._saved_paths[step] = self._paths.get(WeightsId(epoch, step), self._now[:step])

    # ── data ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_granted(self, message: WorkGranted) -> None:
        """Data acknowledges samples."""
        if self._plan.only_evaluates:
            granted = [task.key for task in message.tasks if task.key.evaluation is None]
            demand(not granted, f"training prompts are granted, but nothing is trained: {granted}")
        for key in message.taken:
            if key in self._delivered:
                self._acknowledged[key] = self._delivered[key]

    def on_delivered(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self._delivered[trajectory.key] = trajectory

    def on_batch(self, message: BatchReady) -> None:
        keys = frozenset(trajectory.key for group in message.groups for trajectory in group.trajectories)
        first = self._batches.setdefault((message.epoch, message.step), keys)
        demand(first == keys, f"step {message.step} of epoch {message.epoch} got two batches")

    def on_persisted(self, records: Sequence[Record]) -> None:
        if any(isinstance(record, TrainerForked) for record in records):
            self._acknowledged.clear()  # their weights are gone, and some must be generated again
        self._is_base_evaluated |= EvaluationClosed(version=BASE_WEIGHTS.version) in records

    def on_recovered(self, state: DataState) -> None:
        """Checks data's state recovered from its log: it contains everything acknowledged."""
        lost = [key for key, trajectory in self._acknowledged.items() if state.is_wanted(trajectory)]
        demand(not lost, f"acknowledged, and not in the log: {lost[:3]}")

    def on_counted(self, counted: AnswersCounted) -> None:
        """A reported count follows from the log, so a death of data cannot undo it."""
        num = self._plan.evaluation_prompts
        demand(counted.num_answered <= counted.num_prompts == num, f"{counted} of {num} prompts")
        before = self.counted[-1].num_answered if self.counted else 0
        demand(counted.num_answered >= before, f"{counted} after {before}")
        self.counted.append(counted)

    # ── replicas ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on_begin(self, task: GroupTask, *, by: int, weights: WeightsId) -> None:
        demand(task.exact in (None, weights), f"{task.key} wants {task.exact} and runs on {weights}")
        for known in task.progress:
            self._check_writers(known.key, {run.weights for run in known.runs}, weights)
        for sample in task.samples:
            self._own(SampleKey(group=task.key, sample=sample), task.lease, by)

    def on_resume(self, handed: SequencesHandedOver, *, by: int, weights: WeightsId, num_running: int) -> None:
        num_samples = len(handed.progress)
        demand(num_running + num_samples <= self._plan.max_batch, f"{num_samples} moved to a host with {num_running}")
        for known in handed.progress:
            self._check_writers(known.key, {run.weights for run in known.runs}, weights)
            self._own(known.key, handed.lease, by)
        self.num_moved += num_samples

    def on_life(self, key: SampleKey, known: SampleProgress | None) -> int:
        """Registers a new life that continues from the tokens of a single earlier life; returns its number."""
        packed_tokens = b"" if known is None else known.packed_tokens
        lives = self._lives.setdefault(key, [])
        if known is not None and known.num_tokens:
            life = (packed_tokens[-1] - len(packed_tokens) + 1) % 256 if packed_tokens else len(lives)
            demand(
                life < len(lives) and len(packed_tokens) == known.num_tokens,
                f"{key} continues from unknown tokens: {known}",
            )
            whole = lives[life] + words(life, len(lives[life]), len(packed_tokens))
            demand(packed_tokens == whole, f"{key} continues from {packed_tokens.hex()} instead of {whole.hex()}")
            routes = known.packed_routes
            demand(routes == packed_tokens[:-1], f"{key} continues with routes {routes.hex()}")
        lives.append(packed_tokens)
        return len(lives) - 1

    def on_routed(self, key: SampleKey, routes: bytes) -> None:
        """A life of the sample ends with these routes."""
        self._routes.setdefault(key, set()).add(routes)

    def _check_writers(self, key: SampleKey, writers: set[WeightsId], weights: WeightsId) -> None:
        if not self._plan.schedule.mixes_versions:
            demand(writers <= {weights}, f"{key} of {writers} continues with {weights}")

    def _own(self, key: SampleKey, lease: int, by: int) -> None:
        owner = self._leases.setdefault((key, lease), by)
        demand(owner == by, f"{key} runs on {owner} and on {by} under lease {lease}")

    def on_stopped(self, key: SampleKey, lease: int, *, by: int) -> None:
        if self._leases.get((key, lease)) == by:
            del self._leases[key, lease]

    def on_death(self, replica: int) -> None:
        for place in [place for place, owner in self._leases.items() if owner == replica]:
            del self._leases[place]

    def on_install(
        self, *, over: WeightsId | None, in_use: set[WeightsId], weights: WeightsId, carries_on: bool = False
    ) -> None:
        """`over`: the weights replaced; `in_use`: those of running samples; `carries_on`: those on `over` continue."""
        schedule = self._plan.schedule
        if schedule.keeps_version:
            demand(not carries_on or schedule.age_cap is not None, f"{weights} laid over {over} without an age cap")
            self.num_carried_on += carries_on
            in_use = in_use - {over} if carries_on else in_use
            demand(over not in in_use, f"{weights} installed over {over}, which is in use")
            demand(len(in_use) < self._plan.weight_slots, f"{weights} installed in addition to {in_use}")

    # ── relays ────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_serve(self, weights: WeightsId, *, is_whole: bool) -> None:
        demand(weights in self.published, f"version {weights} served, never published")
        demand(is_whole, f"version {weights} served, not whole")

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_paused(self) -> None:
        """A paused run has saved everything that was trained."""
        saved = self._saved_paths.get(self.trained_steps)
        demand(saved == self._now, f"paused after step {self.trained_steps}, saved are {[*self._saved_paths]}")

    def on_end(self) -> None:
        steps, num_trained = self._plan.steps, sum(len(self._trained[serial]) for serial in self._now)
        last = max(steps, self._start_step)
        demand(self.trained_steps == last, f"ended after {self.trained_steps} of {steps} steps")
        demand(len(self._now) == last, f"{len(self._now)} steps lead to {last}")
        demand(self.ledger.get("trained") == num_trained, f"the ledger has {self.ledger}, trained are {num_trained}")
        due = [step for step in range(self._start_step, last + 1) if self._plan.evaluates(step)]
        due += [BASE_WEIGHTS.version] if self._base_is_due else []
        versions = {report.weights.version for report in self.evaluated}
        excused = {fault.component for fault in self.faults}  # no answer was graded: a fault instead of a mean
        missing = [step for step in due if step not in versions and f"evaluation/{step}" not in excused]
        demand(not missing, f"evaluated {sorted(versions)}, due were {due}")
        counts = [(count.num_answered, count.num_prompts) for count in self.counted[-1:]]
        whole = [(self._plan.evaluation_prompts,) * 2] if self._plan.only_evaluates else []
        demand(counts == whole, f"the last count is {counts}, expected {whole}")


def _gave_up(fault: FaultReported) -> bool:
    return "given up" in fault.action


def _distance(one: Path, other: Path) -> int:
    """Steps between two weights in the tree."""
    common = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        common += 1
    return len(one) + len(other) - 2 * common
