"""The outcome of a run: what its steps were, and the figures of those that are measured."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.sim.fleet.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as it ended; what replicas did is counted since the start."""

    ended_at: float
    training_s: float
    tokens: int
    """Of its batch: prompts and responses."""
    num_trajectories: int
    staleness_sum: int
    """Each trajectory's is that of its stalest token."""
    staleness_max: int
    token_staleness_sum: int
    num_trained: int
    """Tokens of its batch that replicas wrote."""
    busy_s: float
    held_up_s: float
    kv_token_s: float
    num_written: int
    num_prefilled: int
    num_evicted: int
    num_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens_per_s: float
    step_s: float
    staleness_mean: float
    """Of trajectories, each by its stalest token."""
    staleness_max: int
    staleness_of_tokens: float
    """The mean, each token by the version that wrote it."""
    kv_used: float
    """Of the room for keys and values, over time and replicas."""
    generation_share: float
    """Of a step, the part in which nothing is trained and no weights are copied: training waits for answers."""
    rollout_wait_share: float
    """Of the replicas' time, the part in which they decode nothing."""
    prefill_tokens: float
    """A step: prompts, tools' answers, and what had to be read again."""
    moved: float
    evicted: float
    num_events: int


def measured(setup: "Setup", steps: list[Step], *, num_events: int) -> Outcome:
    first, last = steps[setup.warm_steps - 1], steps[-1]
    window = steps[setup.warm_steps :]
    seconds = last.ended_at - first.ended_at
    training_s = sum(step.training_s - setup.switch_s + setup.stall_s for step in window)
    replica_s = seconds * setup.num_replicas
    return Outcome(
        tokens_per_s=sum(step.tokens for step in window) / seconds,
        step_s=seconds / len(window),
        staleness_mean=sum(step.staleness_sum for step in window) / sum(step.num_trajectories for step in window),
        staleness_max=max(step.staleness_max for step in window),
        staleness_of_tokens=sum(step.token_staleness_sum for step in window) / sum(step.num_trained for step in window),
        kv_used=(last.kv_token_s - first.kv_token_s) / replica_s / setup.room.kv_tokens,
        generation_share=max(0.0, 1 - training_s / seconds),
        rollout_wait_share=max(0.0, 1 - (last.busy_s - first.busy_s) / replica_s),
        prefill_tokens=(last.num_prefilled - first.num_prefilled) / len(window),
        moved=(last.num_moved - first.num_moved) / len(window),
        evicted=(last.num_evicted - first.num_evicted) / len(window),
        num_events=num_events,
    )
