"""Series of a step's batch: rewards, lengths, staleness and times of its trajectories.

Invariant: pure; every name matches the pattern of facts (`a-z0-9_` parts, separated by `/`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.records import Trajectory
from engine.policy.sampling import has_signal
from engine.spec.facts import MAX_PARTS

LONGEST_PART: Final = 60
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    waited_s: float
    """From the request for the batch until its arrival."""
    step_s: float
    """From the end of the step before until the end of this one."""


def batch_series(batch: BatchReady, timing: StepTiming) -> dict[str, float]:
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    staleness = [staleness_of(batch, trajectory) for trajectory in trajectories]
    lengths = sorted(trajectory.num_tokens for trajectory in trajectories)
    by_group = [_trusted_rewards(group.trajectories) for group in batch.groups]
    rewards = [reward for group in by_group for reward in group] or [0.0]
    mean, group_means = _mean(rewards), [_mean(group) for group in by_group if group]
    uniform = [not has_signal(group) for group in by_group]
    step_s = max(timing.step_s, 1e-9)
    return {
        "reward/mean": mean,
        "reward/std": sqrt(_mean([(reward - mean) ** 2 for reward in rewards])),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        "reward/groups_at_best": sum(each == max(rewards) and each > 0 for each in group_means) / len(by_group),
        "reward/groups_without_signal": _mean([float(same) for same in uniform]),
        "reward/untrusted": _mean([float(not trajectory.trusted) for trajectory in trajectories]),
        **_mean_parts(trajectories),
        "length/mean": _mean(lengths),
        "length/p50": float(_percentile(lengths, 0.5)),
        "length/p99": float(_percentile(lengths, 0.99)),
        "length/max": float(lengths[-1]),
        "length/cut_fraction": _mean([float(trajectory.cut) for trajectory in trajectories]),
        "length/segments": _mean([trajectory.num_segments for trajectory in trajectories]),
        "environment/seconds_mean": _mean([trajectory.environment_s for trajectory in trajectories]),
        "environment/seconds_max": max(trajectory.environment_s for trajectory in trajectories),
        "environment/queue_s_mean": _mean([trajectory.queue_s for trajectory in trajectories]),
        "environment/queue_s_max": max(trajectory.queue_s for trajectory in trajectories),
        "environment/queue_depth": float(max(trajectory.queue_depth for trajectory in trajectories)),
        "staleness/mean": _mean(staleness),
        "staleness/max": float(max(staleness)),
        "throughput/tokens_per_s": sum(lengths) / step_s,
        "throughput/trajectories_per_s": len(trajectories) / step_s,
        "trainer/step_s": timing.step_s,
        "trainer/wait_fraction": min(1.0, timing.waited_s / step_s),
        "buffer/groups": float(batch.buffer.num_ready),
        "buffer/groups_in_progress": float(batch.buffer.num_in_progress),
        "moves/samples": float(batch.buffer.num_moved),
        "moves/tokens_saved": float(batch.buffer.num_tokens_saved),
        "moves/tokens_lost": float(batch.buffer.num_tokens_lost),
    }


def _mean_parts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The mean of each part of the reward that the environment names, over trusted rewards."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.trusted and trajectory.content is not None:
            for name, value in trajectory.content.parts:
                values.setdefault(name, []).append(value)
    series = {series_of(name): _mean(values[name]) for name in sorted(values)}
    return dict(sorted(series.items())[:MAX_PARTS])


def series_of(part: str) -> str:
    return f"reward/part/{_NO_NAME.sub('_', part.lower())[:LONGEST_PART] or '_'}"


def _trusted_rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    return [trajectory.reward for trajectory in trajectories if trajectory.trusted]


def staleness_of(batch: BatchReady, trajectory: Trajectory) -> int:
    """Staleness of the stalest token, at the version that consumes it: the one before this step."""
    return max(batch.lineage.staleness(weights, at=batch.step - 1) for weights in trajectory.writers)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percentile(ascending: Sequence[int], fraction: float) -> int:
    """The smallest value that at least this fraction of the values does not exceed."""
    return ascending[max(0, ceil(fraction * len(ascending)) - 1)]
