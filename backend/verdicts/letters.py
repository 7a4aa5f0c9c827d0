"""Letters about alarms, to who submitted the job. To a program, and where no mail goes out, there is none."""

from django.conf import settings

from backend.accounts.letters import send_letter
from backend.jobs.models import Job
from backend.verdicts.findings import Found


def write_of(job: Job, alarm: Found) -> bool:
    """True if it was taken. After the commit, and never a reason to fail."""
    person = job.created_by
    if person.is_service or not person.is_active:
        return False
    page = f"{settings.ENVIRONMENT.public_url}/jobs/{job.pk}/"
    text = f"{alarm.sentence}\n\n{alarm.remedy}\n\n{page}\n"
    return send_letter(person.email, f"{job.name}: {alarm.word}", text)
