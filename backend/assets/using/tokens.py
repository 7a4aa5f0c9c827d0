"""The token with which the nodes of an attempt fetch what its job uses, and can do nothing else.

Invariants:
- it names an attempt, signed with our own key: it is good while that attempt is the job's live one, for the assets that
  the job named when it was submitted;
- the attempt's own token, which speaks for its driver, travels to no other node.
"""

from typing import Final

from django.core import signing

from backend.assets.models import Asset, AssetState
from backend.jobs.models import JobAttempt

_SALT: Final = "laminar.assets.tokens"


def asset_token(job_id: str, n: int, fence: int) -> str:
    return signing.dumps([job_id, n, fence], salt=_SALT)


def asset_of_token(token: str, asset_id: str) -> Asset | None:
    """Asked for by a node; None: not with this token, or no longer."""
    try:
        job_id, n, fence = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError):
        return None
    if not JobAttempt.objects.filter(job_id=job_id, n=n, fence=fence, ended_at__isnull=True).exists():
        return None
    kept = (AssetState.READY, AssetState.DELETING)  # a mark that is about to be taken back
    return Asset.objects.filter(pk=asset_id, uses__job=job_id, state__in=kept).first()
