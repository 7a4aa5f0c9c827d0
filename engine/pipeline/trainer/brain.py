"""The trainer: requests a batch, trains, publishes the new version, and requests the next batch at once.

    load ──▶ publish ──▶ request ──▶ train ──▶ publish ──▶ request … ──▶ last checkpoint ──▶ finished
      └─ base weights due ──▶ stored ──▶ publish …         └── pause requested: checkpoint ──▶ paused

Invariants:
- step S is trained exactly once by one incarnation: any batch but the requested one is ignored;
- step S makes version S, which is offered to the leading relay until stored there or overtaken;
- training never waits for a relay: the only stall is the copy;
- base weights whose evaluation is due are on every live relay before an incarnation publishes any other version: else a
  relay could report them as missing;
- a checkpoint of step S holds the weights of S and data's progress with the batch of S trained, never a mixture;
- a pausing trainer begins no step, and is paused once its last step is in a checkpoint or the checkpoint has failed; a
  job that trains nothing writes no checkpoint;
- its messages name its incarnation (epoch) and the checkpoint that it began with, so that no receiver confuses it with
  a dead trainer.
"""

from typing import Final

from engine.pipeline.effects import Effect, SaveCheckpoint, Send, TrainOn
from engine.pipeline.messages.addresses import DATA, DRIVER, MANAGER
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import (
    CheckpointReported,
    FaultReported,
    PartFinished,
    RunBroken,
    StepReported,
    ToDriver,
    TrainerPaused,
    TrainerReady,
)
from engine.pipeline.messages.to_manager import WeightsUpdated
from engine.pipeline.messages.to_relay import RelaysPlaced
from engine.pipeline.messages.to_trainer import (
    BatchReady,
    BatchTrained,
    CheckpointFailed,
    CheckpointWritten,
    MasterElected,
    TrainerLoaded,
    VersionRefused,
    VersionStored,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.pipeline.trainer.alarm import GapAlarm
from engine.pipeline.trainer.choice import Choice
from engine.pipeline.trainer.metrics import StepTiming, batch_series
from engine.pipeline.trainer.offers import Offers
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from engine.spec.causes import PlatformCause

RESEND_AFTER_S: Final = 2.0


class TrainerBrain:
    def __init__(self, plan: Plan, *, epoch: int = 0) -> None:
        """`epoch`: this incarnation of the trainer."""
        self._plan, self._epoch = plan, epoch
        self._version: int | None = None
        """The last step trained; None until its weights may be published."""
        self._loaded: TrainerLoaded | None = None
        """While the relays get the base weights."""
        self._resumed: ResumedFrom | None = None
        self._checkpointed = 0
        self._wanted_step: int | None = None
        self._wanted_since = 0.0
        self._asked_at = 0.0
        self._step_ended_at = 0.0
        self._batch: BatchReady | None = None
        self._waited_s = 0.0
        self._offers = Offers(plan, epoch=epoch)
        self._gap_alarm = GapAlarm()
        self._choice = Choice()
        self._is_pausing = False
        self._saving: int | None = None
        """The newest step whose checkpoint was started."""
        self._saved_at = 0.0
        """Time at which that checkpoint was started, or the trainer was loaded."""
        self._progress: DataProgress | None = None
        """Data's progress with the last step trained."""

    def handle(self, message: Message, now: float) -> list[Effect]:
        match message:
            case TrainerLoaded():
                return self._on_loaded(message, now)
            case BatchReady():
                return self._on_batch(message, now)
            case BatchTrained():
                return self._on_trained(message, now)
            case CheckpointWritten():
                return self._on_written(message)
            case CheckpointFailed():
                return self._on_write_failed(message)
            case PauseRequested():
                return self._on_pause()
            case VersionStored():
                return self._on_stored(message, now)
            case VersionRefused():
                return self._offers.on_refused(message.weights, now)
            case RelaysPlaced():
                return self._offers.set_relays(message.relays, now)
            case MasterElected():
                return self._offers.on_elected(message, now)
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"the trainer does not take {type(message).__name__}")

    def _on_loaded(self, message: TrainerLoaded, now: float) -> list[Effect]:
        if self._version is not None or self._loaded is not None:
            return []
        ready = _report(TrainerReady(num_parameters=message.num_parameters, epoch=self._epoch))
        if message.holds_base:
            self._loaded = message
            return [ready, *self._offers.offer_base(now)]
        return [ready, *self._begin(message, now)]

    def _on_stored(self, message: VersionStored, now: float) -> list[Effect]:
        effects = self._offers.on_stored(message.weights, now)
        if self._loaded is not None and message.weights == BASE_WEIGHTS:
            loaded, self._loaded = self._loaded, None
            effects += self._begin(loaded, now)
        return effects

    def _begin(self, message: TrainerLoaded, now: float) -> list[Effect]:
        self._step_ended_at = self._saved_at = now
        self._checkpointed = message.step
        if message.progress is not None or self._epoch:  # no checkpoint yet: everything begins again
            self._resumed = ResumedFrom(step=message.step, progress=message.progress or DataProgress())
        effects = self._publish(message.step, now)
        if message.step >= self._plan.steps:  # an evaluation, or the trainer died after its last checkpoint
            is_paused = self._is_pausing and self._plan.only_evaluates
            ended = [self._report_end(message.step), self._report_finished()]
            return [*effects, *ended, *(self._pause() if is_paused else [])]
        return [*effects, *(self._pause() if self._is_pausing else self._request_step(message.step + 1, now))]

    def _on_batch(self, message: BatchReady, now: float) -> list[Effect]:
        if message.step != self._wanted_step or message.epoch != self._epoch:
            return []
        self._wanted_step, self._batch = None, message
        self._waited_s = now - self._wanted_since
        return [TrainOn(step=message.step, groups=message.groups, lineage=message.lineage)]

    def _on_trained(self, message: BatchTrained, now: float) -> list[Effect]:
        batch, step = self._batch, message.step
        if batch is None or batch.step != step:
            return []
        self._batch = None
        timing = StepTiming(waited_s=self._waited_s, step_s=now - self._step_ended_at)
        self._step_ended_at = now
        metrics = {**batch_series(batch, timing), **message.metrics}
        if self._offers.broadcast_s is not None:
            metrics["weights/broadcast_s"] = self._offers.broadcast_s
        effects = self._publish(step, now)
        self._progress = batch.progress
        if step == self._plan.steps:
            effects.append(self._report_end(step))
        elif not self._is_pausing:
            effects += self._request_step(step + 1, now)
        to_read = self._choice.to_read(batch, message, step_s=timing.step_s)
        effects.append(_report(StepReported(step=step, metrics=metrics, to_read=to_read)))
        effects += map(_report, self._gap_alarm.receive(step, metrics))
        if self._plan.checkpoints(step, last_s=now - self._saved_at):
            self._saved_at = now
            effects.append(self._save(step, batch.progress))
        return [*effects, *(self._pause() if self._is_pausing else [])]

    def _save(self, step: int, progress: DataProgress) -> Effect:
        self._saving = step
        return SaveCheckpoint(step=step, progress=progress)

    def _publish(self, step: int, now: float) -> list[Effect]:
        """Steps within a window are not published; the weights that an incarnation begins with always are."""
        is_first, self._version = self._version is None, step
        if not is_first and not self._plan.publishes(step):
            return []
        updated = WeightsUpdated(weights=WeightsId(self._epoch, step))
        return [*self._offers.publish(step, now), Send(to=MANAGER, message=updated)]

    def _on_written(self, message: CheckpointWritten) -> list[Effect]:
        self._checkpointed = max(self._checkpointed, message.step)
        report = CheckpointReported(
            step=message.step,
            uri=message.uri,
            manifest_sha256=message.manifest_sha256,
            num_bytes=message.num_bytes,
        )
        if message.step != self._plan.steps:
            return [_report(report), *(self._pause() if self._is_pausing else [])]
        return [_report(report), self._report_finished(), self._report_end(message.step)]

    def _report_finished(self) -> Effect:
        return _report(PartFinished(part="trainer", epoch=self._epoch))

    def _on_write_failed(self, message: CheckpointFailed) -> list[Effect]:
        if message.step == self._plan.steps:
            reason = f"the last checkpoint could not be written: {message.reason}"
            if message.is_of_storage:
                broken = RunBroken(failure_class="infrastructure", message=reason, cause=PlatformCause.STORAGE)
            else:
                broken = RunBroken(failure_class="platform", message=reason)
            return [_report(broken)]
        fault = FaultReported(
            component="trainer",
            message=f"checkpoint of step {message.step} failed: {message.reason}",
            action="training continues; the previous checkpoint stays the newest",
        )
        is_last = self._is_pausing and message.step == self._version
        return [_report(fault), *([self._report_paused(message.step)] if is_last else [])]

    # ── pausing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_pause(self) -> list[Effect]:
        self._is_pausing, self._wanted_step = True, None
        return self._pause()

    def _pause(self) -> list[Effect]:
        """The next effects on the way to a pause; none after the job's last step, which ends the run."""
        step = self._version
        if step is not None and self._plan.only_evaluates:
            return [self._report_paused(step)]
        if step is None or self._batch is not None or step >= self._plan.steps:
            return []
        if step <= self._checkpointed:
            return [self._report_paused(step)]
        if self._saving == step:
            return []
        assert self._progress is not None, "a step beyond the checkpoint was trained by this incarnation"
        return [self._save(step, self._progress)]

    def _report_paused(self, step: int) -> Effect:
        return _report(TrainerPaused(step=step, checkpointed=self._checkpointed))

    # ── requests to data ──────────────────────────────────────────────────────────────────────────────────────────

    def _request_step(self, step: int, now: float) -> list[Effect]:
        self._wanted_step, self._wanted_since, self._asked_at = step, now, now
        return [self._request_batch(step)]

    def _request_batch(self, step: int) -> Effect:
        wanted = BatchWanted(step=step, epoch=self._epoch, checkpointed=self._checkpointed, resumed=self._resumed)
        return Send(to=DATA, message=wanted)

    def _report_end(self, version: int) -> Effect:
        weights = WeightsId(self._epoch, version)
        ended = TrainingEnded(weights=weights, checkpointed=self._checkpointed, resumed=self._resumed)
        return Send(to=DATA, message=ended)

    def _on_tick(self, now: float) -> list[Effect]:
        effects = self._offers.on_tick(now)
        if now - self._asked_at < RESEND_AFTER_S:
            return effects
        self._asked_at = now
        if self._wanted_step is not None:
            effects.append(self._request_batch(self._wanted_step))
        elif self._version is not None and self._version >= self._plan.steps:
            effects.append(self._report_end(self._version))
        return effects


def _report(report: ToDriver) -> Send:
    return Send(to=DRIVER, message=report)
