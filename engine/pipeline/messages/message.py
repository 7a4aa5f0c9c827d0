"""The union of all messages, and the one message that every brain takes."""

from dataclasses import dataclass

from engine.pipeline.messages.to_data import ToData
from engine.pipeline.messages.to_driver import ToDriver
from engine.pipeline.messages.to_manager import ToManager
from engine.pipeline.messages.to_relay import ToRelay
from engine.pipeline.messages.to_rollout import ToRollout
from engine.pipeline.messages.to_trainer import ToTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """To every brain, periodically: time to resend messages that may have been lost."""


Message = Tick | ToData | ToRollout | ToRelay | ToTrainer | ToManager | ToDriver
