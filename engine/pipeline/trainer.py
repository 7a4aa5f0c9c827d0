"""The trainer: asks for a batch, trains, hands the new version over, and asks for the next at once.

    load ──▶ publish ──▶ ask ──▶ train ──▶ publish ──▶ ask … ──▶ last checkpoint ──▶ finished

Invariants:
- step S is trained exactly once: a batch that is not the one asked for is ignored, however often it comes;
- version S is what step S made; it is offered to the relay until the relay has it or a newer one;
- training never waits for the relay: the only stall is the copy;
- a checkpoint of step S holds the weights of S and the data's progress with the batch of S trained, never a mixture.
"""

from typing import Final

from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    Send,
    TrainOn,
)
from engine.pipeline.messages import (
    DATA,
    DRIVER,
    BatchReady,
    BatchTrained,
    BatchWanted,
    CheckpointFailed,
    CheckpointWritten,
    Message,
    Tick,
    TrainerLoaded,
    TrainingEnded,
    VersionRefused,
    VersionStored,
)
from engine.pipeline.metrics import StepTiming, choose_to_read, step_metrics
from engine.pipeline.plan import Plan
from engine.pipeline.reports import (
    CheckpointReported,
    FaultReported,
    PartFinished,
    RunBroken,
    StepReported,
    ToDriver,
    TrainerReady,
)

RESEND_AFTER_S: Final = 2.0
# A large version takes a while to be fetched and hashed; offering it again too early only doubles the work.
OFFER_AGAIN_AFTER_S: Final = 10.0


class TrainerBrain:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._version: int | None = None
        """The last step trained; None until loaded."""
        self._wanted_step: int | None = None
        self._wanted_since = 0.0
        self._asked_at = 0.0
        self._step_ended_at = 0.0
        self._batch: BatchReady | None = None
        self._waited_s = 0.0
        self._offered_at: dict[int, float] = {}
        """Versions that the relay has not confirmed yet."""

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
            case VersionStored():
                return self._forget(upto=message.version)
            case VersionRefused():
                return self._offer_again(message.version, now)
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"the trainer does not take {type(message).__name__}")

    def _on_loaded(self, message: TrainerLoaded, now: float) -> list[Effect]:
        if self._version is not None:
            return []
        self._step_ended_at = now
        ready = _tell(TrainerReady(num_parameters=message.num_parameters))
        effects = [ready, *self._publish(message.step, now)]
        if message.step >= self._plan.steps:  # the attempt before was lost after its last checkpoint
            return [*effects, *self._end(message.step), _tell(PartFinished(part="trainer"))]
        return [*effects, *self._ask(message.step + 1, now)]

    def _on_batch(self, message: BatchReady, now: float) -> list[Effect]:
        if message.step != self._wanted_step:
            return []
        self._wanted_step, self._batch = None, message
        self._waited_s = now - self._wanted_since
        return [TrainOn(step=message.step, groups=message.groups)]

    def _on_trained(self, message: BatchTrained, now: float) -> list[Effect]:
        batch, step = self._batch, message.step
        if batch is None or batch.step != step:
            return []
        self._batch = None
        timing = StepTiming(waited_s=self._waited_s, step_s=now - self._step_ended_at)
        self._step_ended_at = now
        metrics = {**step_metrics(batch, timing), **message.metrics}
        effects = self._publish(step, now)
        effects += self._end(step) if step == self._plan.steps else self._ask(step + 1, now)
        to_read = choose_to_read(batch, message.advantages)
        effects.append(_tell(StepReported(step=step, metrics=metrics, to_read=to_read)))
        if self._plan.checkpoints(step):
            effects.append(SaveCheckpoint(step=step, progress=batch.progress))
        return effects

    def _on_written(self, message: CheckpointWritten) -> list[Effect]:
        report = CheckpointReported(
            step=message.step,
            uri=message.uri,
            manifest_sha256=message.manifest_sha256,
            num_bytes=message.num_bytes,
        )
        finished = [_tell(PartFinished(part="trainer"))] if message.step == self._plan.steps else []
        return [_tell(report), *finished]

    def _on_write_failed(self, message: CheckpointFailed) -> list[Effect]:
        if message.step == self._plan.steps:
            reason = f"the last checkpoint could not be written: {message.reason}"
            return [_tell(RunBroken(failure_class="infrastructure", message=reason))]
        fault = FaultReported(
            component="trainer",
            message=f"checkpoint of step {message.step} failed: {message.reason}",
            action="training goes on; the checkpoint before stays the newest",
        )
        return [_tell(fault)]

    # ── asking and offering ───────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, step: int, now: float) -> list[Effect]:
        self._wanted_step, self._wanted_since, self._asked_at = step, now, now
        return [Send(to=DATA, message=BatchWanted(step=step))]

    def _end(self, version: int) -> list[Effect]:
        return [Send(to=DATA, message=TrainingEnded(version=version))]

    def _publish(self, version: int, now: float) -> list[Effect]:
        self._version = version
        overtaken = [older for older in self._offered_at if not self._plan.evaluates(older)]
        effects: list[Effect] = [ForgetWeights(version=older) for older in overtaken]
        for older in overtaken:
            del self._offered_at[older]
        self._offered_at[version] = now
        return [*effects, PublishWeights(version=version, pinned=self._plan.evaluates(version))]

    def _forget(self, *, upto: int) -> list[Effect]:
        stored = [
            version
            for version in self._offered_at
            if version == upto or (version < upto and not self._plan.evaluates(version))
        ]
        for version in stored:
            del self._offered_at[version]
        return [ForgetWeights(version=version) for version in stored]

    def _offer_again(self, version: int, now: float) -> list[Effect]:
        if version not in self._offered_at:
            return []
        self._offered_at[version] = now
        return [RepublishWeights(version=version, pinned=self._plan.evaluates(version))]

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for version, offered_at in list(self._offered_at.items()):
            if now - offered_at >= OFFER_AGAIN_AFTER_S:
                effects += self._offer_again(version, now)
        if now - self._asked_at < RESEND_AFTER_S:
            return effects
        self._asked_at = now
        if self._wanted_step is not None:
            effects.append(Send(to=DATA, message=BatchWanted(step=self._wanted_step)))
        elif self._version is not None and self._version >= self._plan.steps:
            effects += self._end(self._version)
        return effects


def _tell(report: ToDriver) -> Send:
    return Send(to=DRIVER, message=report)
