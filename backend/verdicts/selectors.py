"""Read access to verdicts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Self

from pydantic import BaseModel, Field

from backend.jobs.models import Job
from backend.verdicts.findings import FindingOut
from backend.verdicts.models import JobVerdict
from backend.verdicts.rules.finding import label_of_kind


class VerdictOut(BaseModel):
    judged_at: datetime | None = Field(description="Null: not judged yet. Waiting jobs and evaluations are not judged.")
    step: int = Field(description="The job's step when it was judged.")
    is_final: bool = Field(description="The job has ended; this verdict no longer changes.")
    is_alarm: bool
    alarms: list[str] = Field(
        description="Kinds of the active alarms. Each start and end is an event of the job, `alarm_raised` and "
        "`alarm_ended`, and a webhook's `job.alarm_raised` and `job.alarm_ended`."
    )
    findings: list[FindingOut] = Field(
        description="Findings, the most important first; empty before the first verdict. While an alarm is active, "
        "only alarms."
    )

    @classmethod
    def of(cls, row: JobVerdict) -> Self:
        return cls(
            judged_at=row.judged_at,
            step=row.step,
            is_final=row.is_final,
            is_alarm=bool(row.alarms),
            alarms=row.alarms,
            findings=[FindingOut.model_validate(each) for each in row.found],
        )


NOT_YET = VerdictOut(judged_at=None, step=0, is_final=False, is_alarm=False, alarms=[], findings=[])


def verdict_of(job: Job) -> VerdictOut:
    row = JobVerdict.objects.filter(job=job).first()
    return VerdictOut.of(row) if row else NOT_YET


def alarm_texts(jobs: Sequence[Job]) -> dict[str, str]:
    """Word of the verdict by job id, for jobs with active alarms."""
    rows = JobVerdict.objects.filter(job__in=jobs).exclude(alarms=[]).values_list("job_id", "kind")
    return {job_id: label_of_kind(kind) for job_id, kind in rows}
