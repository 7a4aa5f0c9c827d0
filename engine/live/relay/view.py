"""A view of a relay, for tests and benchmarks. It holds no state of a job."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.policy.lineage import WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayView:
    """A snapshot of a relay's state and counters."""

    pid: int
    claim: int
    leads: bool
    visible: frozenset[WeightsId]
    seals: Mapping[WeightsId, str]
    """The sha256 of each sealed version."""
    num_chunks: int
    """Valid chunks received over links."""
    num_bytes: int
    """Bytes of these chunks."""
    num_useless_chunks: int
    """Chunks received although they were present already."""
    num_buried: int
    """How often this relay declared a neighbour dead."""
