"""Messages to a replica: from data, another replica, the manager, its relay, and its own body."""

from dataclasses import dataclass

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
from engine.process.pickling import pickled_by_values
from engine.weights.port import WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGranted:
    incarnation: int
    taken: tuple[SampleKey, ...] = ()
    tasks: tuple[GroupTask, ...] = ()
    to_hold: WeightsId | None = None
    """The weights that this replica must hold until the next order; None: the newest."""
    revoked: tuple[HeldGroup, ...] = ()
    """Samples to stop: the replica does not own them (any more) under this lease or a lower one."""
    reserved: tuple[Reservation, ...] = ()
    """All reservations to keep; one that is not listed is cancelled."""
    handovers: tuple[HandOver, ...] = ()
    is_released: bool = False
    """The replica is leaving, and data needs nothing more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressAcknowledged:
    """From data, in answer to `ProgressStreamed`."""

    incarnation: int
    serial: int
    lacking: tuple[SampleKey, ...] = ()
    """Samples whose earlier tokens data lacks: the replica must report them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencesHandedOver:
    """From another replica's body: a group's samples, to resume under this lease. The payload locates their KV
    cache."""

    incarnation: int
    """The host's incarnation."""
    key: GroupKey
    lease: int
    weights: WeightsId
    progress: tuple[SampleProgress, ...]
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """From the manager: take nothing more, let others take over the rest, and report when nothing is left. Work that
    has not moved by then is handed to data as tokens."""

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
    """From its own body: the bytes do not match their manifest."""

    weights: WeightsId
    reason: str
    is_gone: bool = False
    """The weights were dropped because a newer version is there, which is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesEnded:
    """From its own body."""

    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported:
    """From its own body, in answer to `ReportProgress` or `StopSequences`: samples that still ran."""

    progress: tuple[SampleProgress, ...]
    is_stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasured:
    """From its own body, about once a second."""

    kv_used: float
    num_tokens: int
    """Tokens generated since the start."""
    kv_by_weights: tuple[tuple[WeightsId, float], ...] = ()
    """Each version's share of the cache, where there may be several versions."""


ToRollout = (
    WorkGranted
    | ProgressAcknowledged
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

pickled_by_values(WorkGranted, ProgressAcknowledged)
