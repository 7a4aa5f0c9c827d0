"""From what the parts report to facts that may cross the border.

Invariants:
- no NaN and no infinity leaves the engine; how many were left out is itself a metric;
- text that a model wrote is made printable, and shortened to what a fact may hold.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from engine.pipeline.reports import EvaluationReported, FaultReported, ReadTrajectory, StepReported
from engine.spec.facts import Evaluated, FaultDetected, StepTrained, TrajectoriesSampled, TrajectorySample

MAX_TEXT: Final = 20_000  # a fact may hold 100,000 a field; eight samples a step should stay pleasant to ship
NONFINITE: Final = "train/nonfinite_metrics"
# What facts refuse: control characters but for tab and newline, and halves of surrogate pairs.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def printable(text: str, limit: int = MAX_TEXT) -> str:
    shown = _UNPRINTABLE.sub("\ufffd", text[:limit])
    return shown if len(text) <= limit else shown + " …"


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    kept = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return {**kept, NONFINITE: float(len(metrics) - len(kept))}


def step_trained(report: StepReported, rollout_metrics: Mapping[str, float]) -> StepTrained:
    return StepTrained(step=report.step, metrics=finite({**report.metrics, **rollout_metrics}))


def trajectories_sampled(report: StepReported) -> TrajectoriesSampled:
    return TrajectoriesSampled(step=report.step, trajectories=[_sample(read) for read in report.to_read])


def _sample(read: ReadTrajectory) -> TrajectorySample:
    trajectory, content = read.trajectory, read.trajectory.content
    return TrajectorySample(
        prompt_ordinal=trajectory.key.group.ordinal,
        sample=trajectory.key.sample,
        version=trajectory.version,
        staleness=read.staleness,
        num_tokens=trajectory.num_tokens,
        reward=trajectory.reward,
        advantage=read.advantage if math.isfinite(read.advantage) else 0.0,
        prompt=printable(content.prompt_text) if content else "",
        response=printable(content.response_text) if content else "",
        remark=printable(content.remark) if content else "",
    )


def evaluated(report: EvaluationReported) -> Evaluated:
    return Evaluated(
        version=report.version,
        num_prompts=report.num_prompts,
        reward_mean=report.reward_mean,
        length_mean=report.length_mean,
    )


def fault_detected(report: FaultReported) -> FaultDetected:
    return FaultDetected(
        component=printable(report.component, 90),
        message=printable(report.message),
        action=printable(report.action),
    )
