"""The background task of the audit log: signs the chains' heads and copies them out of the database."""

from celery import shared_task

from backend.audit.anchoring import anchor_heads
from backend.clock import database_now


@shared_task(name="audit.anchor_heads")
def anchor() -> None:
    anchor_heads(now=database_now())
