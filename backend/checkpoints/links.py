"""Links under which a checkpoint can be fetched without a key, for a few minutes.

Invariants:
- a link names one checkpoint of one team and a moment, signed with our own key; nothing of it is chosen by whoever
  asks, and no path is in it;
- it ends by the database's clock, five minutes at most after it was made;
- it is no longer good once the checkpoint is gone, or its team no longer owns it.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.core import signing
from django.urls import reverse

from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.errors import NotFound

LASTS: Final = timedelta(minutes=5)
_SALT: Final = "laminar.checkpoints.links"


def link_to(checkpoint: Checkpoint, *, now: datetime) -> tuple[str, datetime]:
    """An absolute address, and until when it is good."""
    expires_at = (now + LASTS).replace(microsecond=0)
    told = [checkpoint.pk, checkpoint.job.team_id, int(expires_at.timestamp())]
    path = reverse("checkpoint-download", args=[signing.dumps(told, salt=_SALT)])
    return f"{settings.ENVIRONMENT.public_url}{path}", expires_at


def checkpoint_of_link(token: str, *, now: datetime) -> Checkpoint:
    """Raises `NotFound`, and does not say why."""
    try:
        checkpoint_id, team_id, expires = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError):
        raise NotFound("This link is not good, or no longer.") from None
    rows = Checkpoint.objects.select_related("job").filter(state=CheckpointState.COMPLETE, job__team=team_id)
    checkpoint = rows.filter(pk=checkpoint_id).first()
    if checkpoint is None or now >= datetime.fromtimestamp(expires, UTC):
        raise NotFound("This link is not good, or no longer.")
    return checkpoint
