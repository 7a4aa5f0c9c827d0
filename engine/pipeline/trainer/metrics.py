"""Metrics of a step, from the batch alone; and the choice of its trajectories that are worth reading.

Invariant: pure; every name matches the pattern that facts demand (`a-z0-9_` parts, divided by `/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engine.pipeline.messages.to_driver import ReadTrajectory
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.records import Trajectory
from engine.policy.sampling import has_signal

MAX_TO_READ = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    waited_s: float
    """From asking for the batch until it came."""
    step_s: float
    """From the end of the step before until the end of this one."""


def step_metrics(batch: BatchReady, timing: StepTiming) -> dict[str, float]:
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    staleness = [_staleness(batch, trajectory) for trajectory in trajectories]
    lengths = sorted(trajectory.num_tokens for trajectory in trajectories)
    by_group = [_trusted_rewards(group.trajectories) for group in batch.groups]
    rewards = [reward for group in by_group for reward in group] or [0.0]
    group_means = [_mean(group) for group in by_group if group]
    uniform = [not has_signal(group) for group in by_group]
    step_s = max(timing.step_s, 1e-9)
    return {
        "reward/mean": _mean(rewards),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        "reward/groups_solved": sum(mean == max(rewards) and mean > 0 for mean in group_means) / len(by_group),
        "reward/groups_without_signal": _mean([float(same) for same in uniform]),
        "reward/untrusted": _mean([float(not trajectory.trusted) for trajectory in trajectories]),
        "length/mean": _mean(lengths),
        "length/p50": float(_percentile(lengths, 0.5)),
        "length/p99": float(_percentile(lengths, 0.99)),
        "length/max": float(lengths[-1]),
        "length/cut_fraction": _mean([float(trajectory.cut) for trajectory in trajectories]),
        "length/segments": _mean([trajectory.num_segments for trajectory in trajectories]),
        "environment/seconds_mean": _mean([trajectory.environment_s for trajectory in trajectories]),
        "environment/seconds_max": max(trajectory.environment_s for trajectory in trajectories),
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


def choose_to_read(batch: BatchReady, advantages: Sequence[float]) -> tuple[ReadTrajectory, ...]:
    """One that is not trusted, the best, the worst, the longest, the most stale and the one that surprised most; then
    the first ones."""
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    positions = range(len(trajectories))
    chosen = [
        *[at for at in positions if not trajectories[at].trusted][:1],
        max(positions, key=lambda at: (trajectories[at].reward, trajectories[at].num_tokens)),
        min(positions, key=lambda at: (trajectories[at].reward, -trajectories[at].num_tokens)),
        max(positions, key=lambda at: trajectories[at].num_tokens),
        max(positions, key=lambda at: _staleness(batch, trajectories[at])),
        max(positions, key=lambda at: abs(advantages[at])),
    ]
    # One of every group, so that the rest of the page shows different prompts.
    first_of_groups = range(0, len(trajectories), max(1, len(batch.groups[0].trajectories)))
    unique = list(dict.fromkeys([*chosen, *first_of_groups]))[:MAX_TO_READ]
    return tuple(
        ReadTrajectory(
            trajectory=trajectories[at],
            staleness=_staleness(batch, trajectories[at]),
            advantage=advantages[at],
        )
        for at in unique
    )


def _trusted_rewards(trajectories: Sequence[Trajectory]) -> list[float]:
    return [trajectory.reward for trajectory in trajectories if trajectory.trusted]


def _staleness(batch: BatchReady, trajectory: Trajectory) -> int:
    """Of its stalest token, at the version that consumes it: the one before the step that it makes."""
    return max(batch.lineage.staleness(weights, at=batch.step - 1) for weights in trajectory.writers)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percentile(ascending: Sequence[int], fraction: float) -> int:
    """The smallest value that at least this fraction does not exceed."""
    return ascending[max(0, ceil(fraction * len(ascending)) - 1)]
