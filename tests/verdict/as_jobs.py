"""A recorded run as a job: its facts come in by the real intake, at its own pace, and it is judged on the way.

What a recording does not hold (texts, how long held-out answers were, how many weights there are) is 0 or left out.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from backend.jobs.models import Job
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.jobs.submitting.validation import validate_job
from backend.telemetry.intake.ingest import ingest_facts
from backend.verdicts.judging import judge_job
from engine.spec.control import FactBatch
from engine.spec.facts import (
    Evaluated,
    Fact,
    FactBody,
    FaultDetected,
    PhaseChanged,
    PipelineReady,
    RunFinished,
    StepTrained,
)
from engine.spec.job import JobSpec
from tests.frontend.seed import World
from tests.verdict.replaying import recording_of
from tests.verdict.runs import Run

FACTS_AT_ONCE: Final = 15
"""Ingested and judged together: a tick is 5 s, and most of these runs take a third of a second a step."""


def told_as_job(world: World, run: Run, *, name: str, until_s: float, now: datetime) -> Job:
    """The job as it was `until_s` after its first fact; that moment is `now`."""
    recording = recording_of(run)
    began = now - timedelta(seconds=until_s)
    job = _started(world, JobSpec.accepted(recording["spec"] | {"name": name}), at=began)
    attempt = job.attempts.get()
    told = [(at, body) for at, body in _facts_of(recording) if at <= until_s]
    facts_of_all = [
        Fact(seq=seq, at=began + timedelta(seconds=at), body=body) for seq, (at, body) in enumerate(told, start=1)
    ]
    for place in range(0, len(facts_of_all), FACTS_AT_ONCE):
        facts = facts_of_all[place : place + FACTS_AT_ONCE]
        ingest_facts(attempt, FactBatch(attempt=attempt.n, fence=attempt.fence, facts=facts), now=facts[-1].at)
        _judge(job, now=facts[-1].at)
    _judge(job, now=now)
    return job


def _started(world: World, spec: JobSpec, *, at: datetime) -> Job:
    before = at - timedelta(seconds=5)
    job = submit_job(
        team=world.team,
        project=world.project,
        by=Submitter(user=world.owner, key=None),
        spec=spec,
        pool=world.pool,
        now=before,
    )
    validate_job(job.pk, now=before)  # of one with code of its own, that is read first
    schedule_pool(world.pool.pk, now=before)
    return job


def _judge(job: Job, *, now: datetime) -> None:
    job.refresh_from_db()
    if job.step:
        judge_job(job, now=now)
        job.refresh_from_db()


def _facts_of(recording: dict[str, Any]) -> Iterator[tuple[float, FactBody]]:
    spec = recording["spec"]
    for at, kind, *said in recording["facts"]:
        yield at, _body_of(kind, said, spec)


def _body_of(kind: str, said: Sequence[Any], spec: dict[str, Any]) -> FactBody:
    match kind, said:
        case "step", (step, metrics):
            return StepTrained(step=step, metrics=metrics)
        case "evaluated", (version, reward):
            prompts = spec["evaluation"]["prompts"]
            return Evaluated(version=version, num_prompts=prompts, reward_mean=reward, reward_std=0.0, length_mean=0.0)
        case "fault", (component, message):
            return FaultDetected(component=component, message=message, action="")
        case "phase", (phase,):
            return PhaseChanged(phase=phase)
        case "ready", ():
            return PipelineReady(num_replicas=spec["rollout"]["replicas"], num_parameters=0)
        case "finished", (outcome, message, ledger):
            return RunFinished(outcome=outcome, failure_class=None, message=message, ledger=ledger)
    raise AssertionError(f"a recording holds no {kind}")
