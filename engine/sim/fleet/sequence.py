"""A running sample: the tokens that it has left to write, and which weights wrote the others.

Invariant: its runs cover all written tokens, in order.
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
    """Tokens to write in each turn, starting with the current turn."""
    calls: deque[Call]
    context: int
    """Tokens read and written, when it joined or stopped last."""
    num_written: int = 0
    runs: list[VersionRun] = field(default_factory=list)
    """Of `num_written`."""
    joined_at: int = 0
    """The step at which it joined the batch; while it runs, `context` and `left` are as of that step."""
    serial: int = 0
    """The number of its last joining; heap entries with an older one are void."""
    is_running: bool = False
    is_cached: bool = False
    """Its keys and values are in this replica's cache."""
    answer: int = 0
    """The tokens of the tool's answer that it waits for."""
    back_at: float = 0.0
    trip: int = 0
    """Increases when it leaves its replica: events scheduled there are void."""

    def write(self, tokens: int) -> None:
        """Counts tokens written by the current weights."""
        if not tokens:
            return
        self.context += tokens
        self.num_written += tokens
        self.left[0] -= tokens
        if self.runs and self.runs[-1].weights == self.weights:
            tokens += self.runs.pop().num_tokens
        self.runs.append(VersionRun(weights=self.weights, num_tokens=tokens))
