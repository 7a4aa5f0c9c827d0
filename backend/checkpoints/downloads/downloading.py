"""Downloads of a checkpoint's model: a link for a few minutes, and an audit entry that names the recipient."""

from datetime import datetime

from backend.audit.services import record_action
from backend.checkpoints.downloads.links import link_to
from backend.checkpoints.files import CheckpointFiles, Elsewhere, files_of
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.services import refuse_unless_whole
from backend.errors import Conflict


def handed_out(checkpoint: Checkpoint, *, actor: str, now: datetime) -> tuple[str, datetime, CheckpointFiles]:
    """The link, its expiry, and the files behind it. Raises `Refusal`."""
    refuse_unless_whole(checkpoint)
    try:
        files = files_of(checkpoint)
    except Elsewhere as error:
        raise Conflict(
            "This site cannot read the checkpoint's files. Report its id to an operator.", code="elsewhere"
        ) from error
    url, expires_at = link_to(checkpoint, now=now)
    record_action(
        team_id=checkpoint.job.team_id,
        actor=actor,
        action="checkpoint.download_linked",
        target=checkpoint.pk,
        now=now,
    )
    return url, expires_at, files
