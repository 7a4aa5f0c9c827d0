"""The token with which an attempt's nodes fetch their job's assets, and nothing else.

Invariants:
- a token names an attempt and is signed: it is valid while that attempt is the job's live one, for the assets that the
  job named at submission;
- the attempt's own token, which acts for its driver, is not sent to other nodes.
"""

from typing import Final

from django.core import signing

from backend.assets.models import Asset, AssetState
from backend.jobs.models import JobAttempt

_SALT: Final = "laminar.assets.tokens"


def asset_token(job_id: str, n: int, fence: int) -> str:
    return signing.dumps([job_id, n, fence], salt=_SALT)


def asset_of_token(token: str, asset_id: str) -> Asset | None:
    """The asset, for a node's request; None if the token is invalid for it or has expired."""
    try:
        job_id, n, fence = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError):
        return None
    if not JobAttempt.objects.filter(job_id=job_id, n=n, fence=fence, ended_at__isnull=True).exists():
        return None
    kept = (AssetState.READY, AssetState.DELETING)  # a mark that is about to be removed
    return Asset.objects.filter(pk=asset_id, uses__job=job_id, state__in=kept).first()
