"""From what the parts report to facts that may cross the border.

Invariants:
- no NaN and no infinity leaves the engine; how many were left out is itself a metric;
- text that a model wrote is made printable, and shortened to what a fact may hold.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from engine.pipeline.records import Trajectory, TrajectoryContent, VersionRun
from engine.pipeline.reports import EvaluationReported, FaultReported, ReadTrajectory, ReplicaObserved, StepReported
from engine.spec.facts import (
    MAX_SPANS,
    MAX_TRACED,
    Evaluated,
    FaultDetected,
    ReplicasObserved,
    ReplicaState,
    Span,
    StepTrained,
    TokenTrace,
    TrajectoriesSampled,
    TrajectorySample,
)

MAX_TEXT: Final = 20_000  # a fact may hold 100,000 a field; eight samples a step should stay pleasant to ship
MAX_REPLICAS: Final = 64
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
        trace=None if content is None else _trace(trajectory, content),
    )


def _trace(trajectory: Trajectory, content: TrajectoryContent) -> TokenTrace:
    num_tokens = min(len(content.response_ids), MAX_TRACED)
    runs = trajectory.runs or (VersionRun(weights=trajectory.weights, num_tokens=num_tokens),)
    versions = [run.weights.version for run in runs for _ in range(run.num_tokens)]
    written = content.written or (True,) * num_tokens
    return TokenTrace(
        token_ids=list(content.response_ids[:num_tokens]),
        logprobs=[each if math.isfinite(each) else 0.0 for each in content.logprobs[:num_tokens]],
        versions=versions[:num_tokens],
        written=list(written[:num_tokens]),
    )


def replicas_observed(observed: Sequence[ReplicaObserved]) -> ReplicasObserved:
    return ReplicasObserved(replicas=[_replica(each) for each in observed[:MAX_REPLICAS]])


def _replica(observed: ReplicaObserved) -> ReplicaState:
    return ReplicaState(
        replica=observed.replica,
        incarnation=observed.incarnation,
        version=observed.version,
        kv_used=observed.kv_used,
        num_running=observed.num_running,
        num_waiting=observed.num_waiting,
        num_with_environment=observed.num_with_environment,
        num_prefilled=observed.num_prefilled,
        num_decoded=observed.num_decoded,
        spans=[
            Span(
                doing=span.doing,
                start_s=min(0.0, span.started_at - observed.observed_at),
                end_s=min(0.0, span.ended_at - observed.observed_at),
            )
            for span in observed.spans[-MAX_SPANS:]
        ],
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
