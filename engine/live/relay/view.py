"""A view of a relay. No state of a job is in it: it is for tests, benchmarks and whoever looks on."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.policy.lineage import WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayView:
    """A view of a relay, for whoever looks into a run."""

    pid: int
    claim: int
    leads: bool
    visible: frozenset[WeightsId]
    seals: Mapping[WeightsId, str]
    """The sha256 of those that were sealed."""
    num_chunks: int
    """Chunks that came over links and were right."""
    num_bytes: int
    """Of these chunks."""
    num_useless_chunks: int
    """Chunks that came although they were here already."""
    num_buried: int
    """Times that it declared a neighbour dead."""
