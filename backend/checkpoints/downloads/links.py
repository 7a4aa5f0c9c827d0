"""Links that download a checkpoint without a key, for a few minutes.

Invariants:
- a link is signed and names one checkpoint of one team and its expiry; it contains no path and no input of the caller;
- it expires by the database's clock, at most five minutes after its creation;
- it stops working once the checkpoint is deleted or its team no longer owns it.
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
    """An absolute URL, and its expiry."""
    expires_at = (now + LASTS).replace(microsecond=0)
    claims = [checkpoint.pk, checkpoint.job.team_id, int(expires_at.timestamp())]
    path = reverse("checkpoint-download", args=[signing.dumps(claims, salt=_SALT)])
    return f"{settings.ENVIRONMENT.public_url}{path}", expires_at


def checkpoint_of_link(token: str, *, now: datetime) -> Checkpoint:
    """Raises `NotFound`, without a reason."""
    try:
        checkpoint_id, team_id, expires = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError):
        raise NotFound("This link is invalid or has expired. Request a new one.") from None
    rows = Checkpoint.objects.select_related("job").filter(state=CheckpointState.COMPLETE, job__team=team_id)
    checkpoint = rows.filter(pk=checkpoint_id).first()
    if checkpoint is None or now >= datetime.fromtimestamp(expires, UTC):
        raise NotFound("This link is invalid or has expired. Request a new one.")
    return checkpoint
