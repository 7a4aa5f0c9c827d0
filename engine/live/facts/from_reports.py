"""Facts that may cross the border, out of the parts' reports and the announcements of the driver's brain.

Invariants:
- no NaN and no infinity leaves the engine; how many were left out is itself a metric;
- text that a model wrote is made printable, and shortened to what a fact may hold.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, EnterPhase
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    FaultReported,
    ReadTrajectory,
    ReplicaObserved,
    StepReported,
)
from engine.pipeline.records import Trajectory, TrajectoryContent, VersionRun
from engine.sinks.lines import LinesSaid
from engine.spec.facts import (
    MAX_LINES,
    MAX_SPANS,
    MAX_TRACED,
    Evaluated,
    FactBody,
    FaultDetected,
    LogLines,
    Outcome,
    PhaseChanged,
    PipelineReady,
    PromptsAnswered,
    ReplicasObserved,
    ReplicasResized,
    ReplicaState,
    RequestAcknowledged,
    Span,
    StepTrained,
    TokenTrace,
    TrajectoriesSampled,
    TrajectorySample,
)

MAX_TEXT: Final = 20_000  # a fact may hold 100,000 a field; eight samples a step should stay pleasant to ship
MAX_SAMPLES_BYTES: Final = 256 * 1024  # a fact that is alone larger than a batch may be would end its run
MAX_REPLICAS: Final = 64
MAX_SPANS_OF_ALL: Final = 5_000  # 300 kB; with more, each replica's newest are kept
NONFINITE: Final = "train/nonfinite_metrics"
# What facts refuse: control characters but for tab and newline, and halves of surrogate pairs.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def printable(text: str, limit: int = MAX_TEXT) -> str:
    shown = _UNPRINTABLE.sub("\ufffd", text[:limit])
    return shown if len(text) <= limit else shown + " …"


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    kept = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return {**kept, NONFINITE: float(len(metrics) - len(kept))}


def announced(effect: EnterPhase | AnnounceReady | AnnounceSize | Acknowledge) -> FactBody:
    match effect:
        case EnterPhase():
            return PhaseChanged(phase=effect.phase)
        case AnnounceReady():
            return PipelineReady(num_replicas=effect.num_replicas, num_parameters=effect.num_parameters)
        case AnnounceSize():
            return ReplicasResized(replicas=effect.replicas)
        case Acknowledge():
            return RequestAcknowledged(request_id=effect.request_id)


def step_trained(report: StepReported, rollout_metrics: Mapping[str, float]) -> StepTrained:
    return StepTrained(step=report.step, metrics=finite({**report.metrics, **rollout_metrics}))


def trajectories_sampled(report: StepReported) -> list[TrajectoriesSampled]:
    """Several facts where one would be too large to ship."""
    batches: list[list[TrajectorySample]] = [[]]
    num_bytes = 0
    for sample in map(_sample, report.to_read):
        size = len(sample.model_dump_json().encode())
        if batches[-1] and num_bytes + size > MAX_SAMPLES_BYTES:
            batches.append([])
            num_bytes = 0
        batches[-1].append(sample)
        num_bytes += size
    return [TrajectoriesSampled(step=report.step, trajectories=batch) for batch in batches]


def _sample(read: ReadTrajectory) -> TrajectorySample:
    trajectory, content = read.trajectory, read.trajectory.content
    return TrajectorySample(
        prompt_ordinal=trajectory.key.group.ordinal,
        sample=trajectory.key.sample,
        version=trajectory.weights.version,
        staleness=read.staleness,
        num_tokens=trajectory.num_tokens,
        reward=trajectory.reward,
        outcome=_outcome(trajectory),
        advantage=read.advantage if math.isfinite(read.advantage) else 0.0,
        prompt=printable(content.prompt_text) if content else "",
        response=printable(content.response_text) if content else "",
        remark=printable(content.remark) if content else "",
        trace=None if content is None else _trace(trajectory, content),
    )


def _outcome(trajectory: Trajectory) -> Outcome:
    if trajectory.failure is not None:
        return trajectory.failure.kind
    if not trajectory.trusted:
        return "untrusted"
    return "cut" if trajectory.cut else "rewarded"


def _trace(trajectory: Trajectory, content: TrajectoryContent) -> TokenTrace:
    num_tokens = min(len(content.response_ids), MAX_TRACED)
    runs = trajectory.runs or (VersionRun(weights=trajectory.weights, num_tokens=num_tokens),)
    versions = [run.weights.version for run in runs for _ in range(run.num_tokens)]
    written = content.written or (True,) * num_tokens
    return TokenTrace(
        token_ids=list(content.response_ids[:num_tokens]),
        # Six digits behind the point are more than the trainer's own arithmetic has, and half the bytes.
        logprobs=[round(each, 6) if math.isfinite(each) else 0.0 for each in content.logprobs[:num_tokens]],
        versions=versions[:num_tokens],
        written=list(written[:num_tokens]),
    )


def log_lines(said: Iterable[LinesSaid]) -> list[LogLines]:
    """In the order of each component's own lines."""
    by_component: dict[str, list[LinesSaid]] = {}
    for each in said:
        by_component.setdefault(each.component, []).append(each)
    told = []
    for component, parts in by_component.items():
        lines = [line for part in parts for line in part.lines]
        num_dropped = sum(part.num_dropped for part in parts)
        for at in range(0, max(1, len(lines)), MAX_LINES):
            told.append(LogLines(component=component, lines=lines[at : at + MAX_LINES], num_dropped=num_dropped))
            num_dropped = 0
    return told


def replicas_observed(observed: Sequence[ReplicaObserved]) -> ReplicasObserved:
    replicas = observed[:MAX_REPLICAS]
    most_spans = min(MAX_SPANS, MAX_SPANS_OF_ALL // max(1, len(replicas)))
    return ReplicasObserved(replicas=[_replica(each, most_spans) for each in replicas])


def _replica(observed: ReplicaObserved, most_spans: int) -> ReplicaState:
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
                start_s=round(min(0.0, span.started_at - observed.observed_at), 4),
                end_s=round(min(0.0, span.ended_at - observed.observed_at), 4),
            )
            for span in observed.spans[-most_spans:]
        ],
    )


def evaluated(report: EvaluationReported) -> Evaluated:
    return Evaluated(
        version=report.weights.version,
        num_prompts=report.num_prompts,
        reward_mean=report.reward_mean,
        reward_std=report.reward_std,
        length_mean=report.length_mean,
    )


def prompts_answered(counted: AnswersCounted) -> PromptsAnswered:
    return PromptsAnswered(version=counted.version, num_answered=counted.num_answered, num_prompts=counted.num_prompts)


def fault_detected(report: FaultReported) -> FaultDetected:
    return FaultDetected(
        component=printable(report.component, 90),
        message=printable(report.message),
        action=printable(report.action),
    )
