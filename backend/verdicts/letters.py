"""Alarm mails to the user who submitted the job. None for a service account, or where the site sends no mail."""

from django.conf import settings

from backend.accounts.letters import send_letter
from backend.jobs.models import Job
from backend.verdicts.findings import FindingOut


def mail_alarm(job: Job, alarm: FindingOut) -> bool:
    """True if the mail was queued. Runs after the commit; a failure never affects the verdict."""
    person = job.created_by
    if person.is_service or not person.is_active:
        return False
    page = f"{settings.ENVIRONMENT.public_url}/jobs/{job.pk}/"
    text = f"{alarm.sentence}\n\n{alarm.remedy}\n\n{page}\n"
    return send_letter(person.email, f"{job.name}: {alarm.word}", text)
