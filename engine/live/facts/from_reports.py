"""Builds facts from the parts' reports and the announcements of the driver's brain.

Invariants:
- no NaN and no infinity leaves the engine; the number of dropped values is a metric;
- text that a model wrote is made printable, and shortened to the limit of a fact.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from engine.live.facts.token_texts import Spell, no_texts
from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, EnterPhase
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    FaultReported,
    ReadTrajectory,
    ReplicaObserved,
    StepReported,
)
from engine.pipeline.reading import MAX_LETTERS
from engine.pipeline.records import Trajectory, TrajectoryContent, Utterance, VersionRun
from engine.sinks.lines import TakenLines
from engine.spec.facts import (
    MAX_LINES,
    MAX_PARTS,
    MAX_SPANS,
    MAX_TRACED,
    MAX_TURNS,
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
    Turn,
)

MAX_TEXT: Final = MAX_LETTERS
MAX_SAMPLES: Final = 32
LONGEST_TOOL: Final = 190  # and an ellipsis
LONGEST_PART: Final = 50
LONGEST_TEXT: Final = 190
MAX_SAMPLES_BYTES: Final = 256 * 1024  # a fact larger than a whole batch may be would end its run
MAX_REPLICAS: Final = 64
MAX_SPANS_OF_ALL: Final = 5_000  # 300 kB; with more, each replica's newest are kept
NONFINITE: Final = "train/nonfinite_metrics"
# Facts refuse control characters except tab and newline, and halves of surrogate pairs.
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


def step_trained(
    report: StepReported, rollout_metrics: Mapping[str, float], *, ledger: Mapping[str, int]
) -> StepTrained:
    metrics = finite({**report.metrics, **rollout_metrics})
    return StepTrained(step=report.step, metrics=metrics, ledger=dict(ledger))


def trajectories_sampled(
    step: int, to_read: Sequence[ReadTrajectory], *, spell: Spell = no_texts
) -> list[TrajectoriesSampled]:
    """Splits samples over several facts by the limits of size and number."""
    batches: list[list[TrajectorySample]] = [[]]
    num_bytes = 0
    for sample in (_build_sample(read, spell) for read in to_read):
        size = len(sample.model_dump_json().encode())
        if batches[-1] and (num_bytes + size > MAX_SAMPLES_BYTES or len(batches[-1]) == MAX_SAMPLES):
            batches.append([])
            num_bytes = 0
        batches[-1].append(sample)
        num_bytes += size
    return [TrajectoriesSampled(step=step, trajectories=batch) for batch in batches if batch]


def _build_sample(read: ReadTrajectory, spell: Spell) -> TrajectorySample:
    trajectory, content = read.trajectory, read.trajectory.content
    return TrajectorySample(
        prompt_ordinal=trajectory.key.group.ordinal,
        sample=trajectory.key.sample,
        version=trajectory.weights.version,
        staleness=read.staleness,
        num_tokens=trajectory.num_tokens,
        reward=trajectory.reward,
        outcome=_outcome_of(trajectory),
        advantage=read.advantage if math.isfinite(read.advantage) else 0.0,
        prompt=printable(content.prompt_text) if content else "",
        response=printable(content.response_text) if content else "",
        remark=printable(content.remark) if content else "",
        trace=None if content is None else _build_trace(read, content, spell),
        turns=[]
        if content is None
        else [_build_turn(each, content.response_text) for each in content.utterances[:MAX_TURNS]],
        parts={} if content is None else _build_parts(content.parts),
        end=read.end,
        reason=printable(read.reason),
        group_size=read.group_size,
    )


def _build_turn(utterance: Utterance, response: str) -> Turn:
    return Turn(
        author="model" if utterance.is_own else "environment",
        text=printable(response[utterance.start : utterance.start + utterance.num_letters]),
        first_token=utterance.first_token,
        num_tokens=utterance.num_tokens,
        tool=printable(utterance.tool, LONGEST_TOOL),
        arguments=printable(utterance.arguments),
        seconds=None if utterance.seconds is None else round(max(0.0, utterance.seconds), 3),
        error=printable(utterance.error),
    )


def _build_parts(named: Iterable[tuple[str, float]]) -> dict[str, float]:
    finite_parts = ((printable(name, LONGEST_PART), value) for name, value in named if math.isfinite(value))
    return dict(islice(finite_parts, MAX_PARTS))


def _outcome_of(trajectory: Trajectory) -> Outcome:
    if trajectory.failure is not None:
        return trajectory.failure.kind
    if not trajectory.trusted:
        return "untrusted"
    return "cut" if trajectory.cut else "rewarded"


def _build_trace(read: ReadTrajectory, content: TrajectoryContent, spell: Spell) -> TokenTrace:
    trajectory = read.trajectory
    ids = list(content.response_ids[:MAX_TRACED])
    runs = trajectory.runs or (VersionRun(weights=trajectory.weights, num_tokens=len(ids)),)
    versions = [run.weights.version for run in runs for _ in range(run.num_tokens)]
    written = list(content.written[: len(ids)]) or [True] * len(ids)
    return TokenTrace(
        token_ids=ids,
        logprobs=_round(content.logprobs[: len(ids)]),
        versions=versions[: len(ids)],
        written=written,
        texts=[printable(text, LONGEST_TEXT) for text in spell(ids)],
        trainer_logprobs=_round(_align(read.logprobs, written)),
    )


def _round(logprobs: Iterable[float]) -> list[float]:
    """Six decimals are more precise than the trainer's arithmetic, and half the bytes."""
    return [round(each, 6) if math.isfinite(each) else 0.0 for each in logprobs]


def _align(logprobs: Sequence[float], written: Sequence[bool]) -> list[float]:
    """Spreads the log-probs of the model's own tokens over all tokens; empty if some are unknown."""
    if len(logprobs) < sum(written):
        return []
    own = iter(logprobs)
    return [next(own) if is_own else 0.0 for is_own in written]


def log_lines(batches: Iterable[TakenLines]) -> list[LogLines]:
    """Facts for each component, with its lines in order."""
    by_component: dict[str, list[TakenLines]] = {}
    for each in batches:
        by_component.setdefault(each.component, []).append(each)
    facts = []
    for component, parts in by_component.items():
        lines = [line for part in parts for line in part.lines]
        num_dropped = sum(part.num_dropped for part in parts)
        for at in range(0, max(1, len(lines)), MAX_LINES):
            facts.append(LogLines(component=component, lines=lines[at : at + MAX_LINES], num_dropped=num_dropped))
            num_dropped = 0
    return facts


def replicas_observed(observed: Sequence[ReplicaObserved], *, num_replicas: int) -> ReplicasObserved:
    """`num_replicas`: of the whole job."""
    replicas = observed[:MAX_REPLICAS]
    most_spans = min(MAX_SPANS, MAX_SPANS_OF_ALL // max(1, len(replicas)))
    return ReplicasObserved(replicas=[_build_replica(each, most_spans) for each in replicas], num_replicas=num_replicas)


def _build_replica(observed: ReplicaObserved, most_spans: int) -> ReplicaState:
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
        num_steps=observed.num_steps,
        decode_s=round(observed.decode_s, 6),
        num_installs=observed.num_installs,
        install_s=round(observed.install_s, 6),
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
        num_samples=report.num_samples,
        reward_error=report.reward_error,
        pass_rate=report.pass_rate,
        pass_error=report.pass_error,
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
