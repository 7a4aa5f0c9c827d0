"""A sample on its way: what it has left to write, and what of it was written by which weights.

Invariant: its runs are all that it has written, in the order in which it was.
"""

from collections import deque
from dataclasses import dataclass, field

from engine.pipeline.records import SampleKey, VersionRun
from engine.policy.lineage import WeightsId
from engine.sim.costs.environment import Call


@dataclass(slots=True, kw_only=True)
class Sequence:
    key: SampleKey
    lease: int
    weights: WeightsId
    prompt: int
    left: list[int]
    """Tokens to write in each turn; the first is of the turn that it is in."""
    calls: deque[Call]
    context: int
    """Tokens read and written, when it joined or stopped last."""
    num_written: int = 0
    runs: list[VersionRun] = field(default_factory=list)
    """Of `num_written`."""
    joined_at: int = 0
    """A step; while it runs, `context` and the like are of that one."""
    serial: int = 0
    """Of its last joining; an older one on the heap is void."""
    is_running: bool = False
    is_cached: bool = False
    """Its keys and values are here."""
    answer: int = 0
    """Tokens that its tool will have said, while it waits for that."""
    back_at: float = 0.0
    trip: int = 0
    """Grows when it leaves its replica: what was planned there is void."""

    def write(self, tokens: int) -> None:
        """By the weights that it has."""
        if not tokens:
            return
        self.context += tokens
        self.num_written += tokens
        self.left[0] -= tokens
        if self.runs and self.runs[-1].weights == self.weights:
            tokens += self.runs.pop().num_tokens
        self.runs.append(VersionRun(weights=self.weights, num_tokens=tokens))
