"""Messages to the manager: from the parts, from the body that watches their processes, and from outside."""

from dataclasses import dataclass

from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import ResidentLoad
from engine.policy.lineage import WeightsId
from engine.policy.progress import TURNING, Piece
from engine.policy.rooms import HostView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """The load of a replica's places and cache, for finding tails."""

    replica: int
    incarnation: int
    weights: WeightsId
    """Weights that fresh work starts on."""
    num_running: int
    """Sequences on all versions, as in `kv_used`."""
    kv_used: float
    num_tokens: int
    older: tuple[ResidentLoad, ...] = ()
    """Other versions' share of the load."""
    has_free_slot: bool = False
    """The replica could install other weights at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReported:
    """A heartbeat, from a thread of the part's body that never blocks: the process is alive, and its loop is doing this
    piece of work."""

    part: Address
    incarnation: int
    piece: Piece = TURNING
    worker_pieces: tuple[Piece, ...] = ()
    """Work of other threads, each always at the same index. No sign of life of the loop, but the driver counts it as
    progress of the run."""
    waited_s: float = 0.0
    """Total time that the loop's thread was runnable without a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStarved:
    """From the body that watches the processes: the host of a silent part reports that its process exists, is runnable,
    and got no core for so long since the last check."""

    part: Address
    incarnation: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLost:
    """From the body that watches the processes."""

    part: Address
    incarnation: int
    reason: str
    has_failed: bool = False
    """Its program raised at its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsUpdated:
    """From the trainer: time to look for tails, since running work is on an old version now."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOrdered:
    """From outside: this replica's device will be taken away."""

    replica: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOrdered:
    """From the driver: the replicas below this number stay or come back, the others leave."""

    replicas: int
    within_s: float
    order: int = 0
    """The order's number, which `ResizeReported` returns once it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLeft:
    """The replica has handed over everything."""

    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsObserved:
    """From the body that watches the cluster: all available hosts, and the free resources of each."""

    hosts: tuple[HostView, ...]


ToManager = (
    ReplicaReported
    | PartReported
    | PartStarved
    | PartLost
    | WeightsUpdated
    | LeaveOrdered
    | ResizeOrdered
    | ReplicaLeft
    | HostsObserved
)
