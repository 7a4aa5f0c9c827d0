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
    """Data's progress once this batch is trained; goes into the step's checkpoint."""
    buffer: BufferView
    epoch: int = 0
    """The trainer's incarnation that the batch is for."""
    lineage: Lineage = UNFORKED
    """Gives each trajectory's staleness: `lineage.staleness(weights, at=step - 1)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStored:
    """Every live relay of the chain has this version, or a newer one."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRefused:
    weights: WeightsId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterElected:
    """From the relay that makes this claim, until the trainer has answered. Or from a relay that was offered weights
    and does not lead: then it names the leader, and `held` is empty."""

    host: int
    incarnation: int | None
    """None: the sender names another relay."""
    claim: int
    held: tuple[WeightsId, ...]
    """The versions that the master has: others were lost with its predecessor and must be offered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoaded:
    """From its own body: weights and optimizer are in the state after this step."""

    step: int
    num_parameters: int
    progress: DataProgress | None = None
    """Data's progress in the checkpoint; None: the trainer began where the attempt did."""
    holds_base: bool = False
    """The body holds a copy of `BASE_WEIGHTS`, made before it loaded the checkpoint, for their evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrained:
    """From its own body."""

    step: int
    metrics: dict[str, float]
    advantages: tuple[float, ...]
    logprobs: tuple[Floats, ...] = ()
    """Log-probs of the first tokens that the model wrote in each trajectory, at the weights before the step; empty if
    unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """From its own body: the checkpoint is whole and was read back."""

    step: int
    uri: str
    manifest_sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """From its own body."""

    step: int
    reason: str
    is_of_storage: bool = False
    """The disk or the store refused it."""


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
