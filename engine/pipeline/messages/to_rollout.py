"""Messages to a replica: from data, another replica, the manager, its relay, and its own body."""

from dataclasses import dataclass

from engine.pickling import pickled_by_values
from engine.pipeline.records import (
    GroupKey,
    GroupTask,
    HandOver,
    HeldGroup,
    Reservation,
    SampleKey,
    SampleProgress,
    Trajectory,
)
from engine.policy.lineage import WeightsId
from engine.weights.port import WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGranted:
    incarnation: int
    taken: tuple[SampleKey, ...] = ()
    tasks: tuple[GroupTask, ...] = ()
    to_hold: WeightsId | None = None
    """The weights that this replica should hold until told otherwise; None: the newest."""
    revoked: tuple[HeldGroup, ...] = ()
    """Samples that are not its own (any more) under this lease or a lower one: stop them."""
    reserved: tuple[Reservation, ...] = ()
    """All that it should keep room for; what is not listed is cancelled."""
    handovers: tuple[HandOver, ...] = ()
    is_released: bool = False
    """It is leaving, and data needs nothing more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressHeard:
    """From data, in answer to `ProgressStreamed`."""

    incarnation: int
    serial: int
    lacking: tuple[SampleKey, ...] = ()
    """Samples of which data does not know what this continued: they are to be told whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesHandedOver:
    """From another replica's body: the samples of one group, to go on under this lease. The payload says where their
    keys and values are to be had."""

    incarnation: int
    """The host's."""
    key: GroupKey
    lease: int
    weights: WeightsId
    progress: tuple[SampleProgress, ...]
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """From the manager: take nothing more, let others go on with the rest, and say when nothing is left. What has not
    moved by then is handed to data as tokens."""

    incarnation: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnnounced:
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsServed:
    manifest: WeightManifest
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMissing:
    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsInstalled:
    """From its own body."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefused:
    """From its own body: the bytes are not what their manifest says."""

    weights: WeightsId
    reason: str
    is_gone: bool = False
    """They were dropped because a newer version is there, which is nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesEnded:
    """From its own body."""

    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported:
    """From its own body, in answer to `ReportProgress` or `StopSequences`: samples that still ran, as they are."""

    progress: tuple[SampleProgress, ...]
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured:
    """From its own body, about once a second."""

    kv_used: float
    num_tokens: int
    """Generated since the start."""
    kv_by_weights: tuple[tuple[WeightsId, float], ...] = ()
    """The share of the cache that each version's work takes, where there may be several."""


ToRollout = (
    WorkGranted
    | ProgressHeard
    | SequencesHandedOver
    | LeaveRequested
    | VersionAnnounced
    | WeightsServed
    | VersionMissing
    | WeightsInstalled
    | InstallRefused
    | TrajectoriesEnded
    | ProgressReported
    | LoadMeasured
)

pickled_by_values(WorkGranted, ProgressHeard)
