"""Messages to the trainer: from data, the relays, and its own body."""

from dataclasses import dataclass

from engine.pipeline.messages.to_data import PauseRequested
from engine.pipeline.packed import Floats
from engine.pipeline.records import BufferView, CompleteGroup, DataProgress
from engine.policy.lineage import UNFORKED, Lineage, WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    step: int
    groups: tuple[CompleteGroup, ...]
    progress: DataProgress
    """As it will be once this batch is trained; goes into the step's checkpoint."""
    buffer: BufferView
    epoch: int = 0
    """For this incarnation of the trainer."""
    lineage: Lineage = UNFORKED
    """Tells how stale each trajectory is: `lineage.staleness(weights, at=step - 1)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStored:
    """Every live relay of the chain has it, or a newer one."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRefused:
    weights: WeightsId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterElected:
    """From the relay that makes this claim, until the trainer has answered. Or from one that was offered weights and
    does not lead: then it says who does, and `held` is empty."""

    host: int
    incarnation: int | None
    """None: the sender speaks of another relay."""
    claim: int
    held: tuple[WeightsId, ...]
    """The versions that the master has: others were lost with the one before and must be offered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoaded:
    """From its own body: weights and optimizer are as they were after this step."""

    step: int
    num_parameters: int
    progress: DataProgress | None = None
    """The data's progress in the checkpoint; None: it began where the attempt did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrained:
    """From its own body."""

    step: int
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    logprobs: tuple[Floats, ...] = ()
    """Of the first tokens that the model wrote of each, at the weights that the step began with; empty where they are
    not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """From its own body: whole, and read back."""

    step: int
    uri: str
    manifest_sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """From its own body."""

    step: int
    reason: str


ToTrainer = (
    TrainerLoaded
    | BatchReady
    | BatchTrained
    | CheckpointWritten
    | CheckpointFailed
    | PauseRequested
    | VersionStored
    | VersionRefused
    | MasterElected
)
