"""Tasks that both systems train on, with the demo model: the same prompts, groups, lengths and rewards.

Invariants:
- settings of both systems are defined here once;
- a tool's waits are drawn by prompt, sample and turn: both systems wait for the same.
"""

from dataclasses import dataclass, field
from typing import Any, Final

PROMPTS: Final = 16
GROUP: Final = 8
BATCH: Final = PROMPTS * GROUP
TURNS: Final = 3
WAIT_MEAN_S: Final = 0.1  # short for a tool: longer waits only add waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    title: str
    new_tokens: int
    environment: dict[str, Any] = field(default_factory=dict)
    rollout: dict[str, Any] = field(default_factory=dict)
    """Of this engine alone."""
    num_turns: int = 1


TASKS: Final = {
    "sums": Task(
        title="running sums",
        new_tokens=80,
        # One slot: answers are so short that draining costs less than two half batches.
        rollout={"weight_slots": 1},
    ),
    "tools": Task(
        title=f"tool sums, {TURNS} turns, tailed waits of {WAIT_MEAN_S:g} s",
        new_tokens=64,
        environment={"name": "tool_sums", "params": {"turns": TURNS, "wait_mean_s": WAIT_MEAN_S}},
        # A sample that waits for its tool takes a slot but no time of the replica.
        rollout={"max_batch": 2 * BATCH},
        num_turns=TURNS,
    ),
}
