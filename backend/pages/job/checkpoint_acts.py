"""The actions on a checkpoint: download, pin, promote and delete; and which of a job's checkpoints are kept.

Invariants:
- readers may download; members may do the rest, and the service checks the permission again;
- the confirmation states what may be lost.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import QueryDict

from backend.accounts.acting import Acting
from backend.checkpoints.models import GONE, Checkpoint, CheckpointState, Retention
from backend.checkpoints.registry.versions import promote
from backend.checkpoints.selectors import retention_of
from backend.checkpoints.services import change_checkpoint, delete_checkpoint
from backend.errors import Invalid
from backend.pages.templatetags.laminar import number, size

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LONGEST_NOTE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAct:
    verb: str
    title: str
    question: str
    fits: Callable[[Checkpoint], bool]
    costs: Callable[[Checkpoint], Sequence[str]]
    do: Callable[[Checkpoint, QueryDict, str, datetime], str]
    """Returns the message for the user. Raises `Refusal`."""
    is_danger: bool = False
    names_model: bool = False
    """The confirmation has a field for the model's name."""
    undone_by: str = ""
    """The verb of the act that fully reverts this one."""

    @property
    def page(self) -> str:
        """The URL name of its page."""
        return f"{self.verb}_checkpoint"


def _is_whole(checkpoint: Checkpoint) -> bool:
    return checkpoint.state == CheckpointState.COMPLETE


def _kept_by(retention: Retention) -> str:
    best = f" and the best {number(retention.keep_best)} by {retention.metric}" if retention.keep_best else ""
    return f"the newest {number(retention.keep_last)}{best}"


def _unpin_costs(checkpoint: Checkpoint) -> list[str]:
    kept = _kept_by(retention_of(checkpoint.job))
    return [f"The job's retention rule then applies: it keeps {kept} and deletes the others permanently."]


def _delete_costs(checkpoint: Checkpoint) -> list[str]:
    newest = Checkpoint.objects.filter(job=checkpoint.job_id).usable().first()
    lost = [f"Its {size(checkpoint.num_bytes)} are removed after a minute and cannot be restored."]
    if newest is not None and newest.pk == checkpoint.pk:
        before = Checkpoint.objects.filter(job=checkpoint.job_id).usable().exclude(pk=newest.pk).first()
        where = f"after step {number(before.step)}" if before else "from the beginning"
        lost.append(f"This is the newest checkpoint. Attempts and jobs that continue this one will start {where}.")
    return [*lost, "Its evaluation results are kept."]


def _promote_costs(checkpoint: Checkpoint) -> list[str]:
    return ["It becomes a numbered version of a model of your team, and stays pinned while that version exists."]


def _pin(checkpoint: Checkpoint, sent: QueryDict, actor: str, now: datetime) -> str:
    change_checkpoint(checkpoint.pk, actor=actor, now=now, pinned=True, expires_at=None, has_expiry=False)
    return f"The checkpoint of step {number(checkpoint.step)} is pinned. It is kept until you unpin it."


def _unpin(checkpoint: Checkpoint, sent: QueryDict, actor: str, now: datetime) -> str:
    change_checkpoint(checkpoint.pk, actor=actor, now=now, pinned=False, expires_at=None, has_expiry=False)
    return f"The checkpoint of step {number(checkpoint.step)} is no longer pinned."


def _delete(checkpoint: Checkpoint, sent: QueryDict, actor: str, now: datetime) -> str:
    delete_checkpoint(checkpoint.pk, actor=actor, now=now)
    return f"The checkpoint of step {number(checkpoint.step)} is deleted. Its files are removed within minutes."


def _promote(checkpoint: Checkpoint, sent: QueryDict, actor: str, now: datetime) -> str:
    name, note = sent.get("name", "").strip(), sent.get("note", "").strip()
    if not MODEL_NAME.fullmatch(name):
        raise Invalid("A model name must have 1 to 100 letters, digits, dots, dashes or underscores.")
    if len(note) > LONGEST_NOTE or not note.replace("\r", "").replace("\n", "").isprintable():
        raise Invalid(f"The notes must have at most {number(LONGEST_NOTE)} printable characters.")
    version, is_new = promote(checkpoint.pk, name=name, note=note, actor=actor, now=now)
    verb = "It is now" if is_new else "It is already"
    return f"{verb} version {number(version.number)} of {name}."


PIN: Final = CheckpointAct(
    verb="pin",
    title="Pin",
    question="Pin this checkpoint?",
    fits=lambda each: not each.pinned and each.state not in GONE,
    costs=lambda _: ["It is kept until a member unpins it, and counts towards your team's storage."],
    do=_pin,
    undone_by="unpin",
)
UNPIN: Final = CheckpointAct(
    verb="unpin",
    title="Unpin",
    question="Unpin this checkpoint?",
    fits=lambda each: each.pinned and not each.promotions.exists(),
    costs=_unpin_costs,
    do=_unpin,
    undone_by="pin",
)
PROMOTE: Final = CheckpointAct(
    verb="promote",
    title="Promote",
    question="Promote this checkpoint?",
    fits=_is_whole,
    costs=_promote_costs,
    do=_promote,
    names_model=True,
)
DELETE: Final = CheckpointAct(
    verb="delete",
    title="Delete",
    question="Delete this checkpoint?",
    fits=lambda each: not each.pinned and each.state in (CheckpointState.COMPLETE, CheckpointState.CORRUPT),
    costs=_delete_costs,
    do=_delete,
    is_danger=True,
)
ACTS: Final = (PROMOTE, PIN, UNPIN, DELETE)


def may_change(acting: Acting) -> bool:
    return "checkpoints:write" in acting.scopes


def acts_of(checkpoint: Checkpoint, acting: Acting) -> list[CheckpointAct]:
    return [each for each in ACTS if each.fits(checkpoint)] if may_change(acting) else []
