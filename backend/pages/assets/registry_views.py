"""A model of the team's registry: its versions with their origins and notes, and their removal.

Invariants:
- removal follows REST's rules: by admins and owners of the team, versions before their model;
- removing a name deletes no bytes, and the confirmation states this.
"""

from collections.abc import Callable, Mapping
from typing import Final

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.acting import Acting
from backend.borders.types import read_count
from backend.checkpoints.models import ModelVersion, RegisteredModel
from backend.checkpoints.registry.api import MAY_REMOVE, MOST_OF_A_MODEL
from backend.checkpoints.registry.uploads import uploads_of
from backend.checkpoints.registry.versions import (
    change_note,
    locked_model,
    locked_version,
    remove_model,
    remove_version,
)
from backend.checkpoints.selectors import the_model, the_version, versions_of
from backend.clock import database_now
from backend.errors import Denied, Invalid, NotFound
from backend.pages import curl
from backend.pages.team.team_views import act_and_notify, acting_in, address_of, frame_of
from backend.pages.undoing import Done, UndoForm

LONGEST_NOTE: Final = 2_000


@require_safe
@never_cache
@login_required
def model(request: HttpRequest, model_name: str) -> HttpResponse:
    acting = acting_in(request)
    found = _model_of(acting, model_name)
    versions = list(versions_of(found).select_related("checkpoint__job")[:MOST_OF_A_MODEL])
    uploads = list(uploads_of()(found)[:MOST_OF_A_MODEL])
    context = frame_of(acting) | {
        "model": found,
        "versions": versions,
        "uploads": uploads,
        "may_note": "checkpoints:write" in acting.scopes,
        "may_remove": _may_remove(acting),
        "longest_note": LONGEST_NOTE,
        "curl": curl.get(f"/models/{found.name}"),
        "now": database_now(),
    }
    return render(request, "pages/team/model.html", context)


@require_POST
@never_cache
@login_required
def change_model(request: HttpRequest, model_name: str) -> HttpResponse:
    """`act`: note or remove_version, for the version `number`; or remove, for the model itself."""
    acting = acting_in(request)
    found, wanted = _model_of(acting, model_name), request.POST.get("act", "")
    change = _CHANGES.get(wanted)
    if change is None:
        raise Http404("This action does not exist for a model.")
    is_done = act_and_notify(request, lambda: change(acting, found, request.POST))
    if is_done and wanted == "remove":
        return redirect(address_of("assets", acting.team))
    return redirect(f"{reverse('model', args=[found.name])}?team={acting.team.pk}")


def _note(acting: Acting, found: RegisteredModel, sent: Mapping[str, str]) -> Done:
    acting.refuse_without("checkpoints:write")
    note = sent.get("note", "").replace("\r\n", "\n").strip()
    if len(note) > LONGEST_NOTE:
        raise Invalid(f"The note must have at most {LONGEST_NOTE:,} characters; got {len(note):,}.")
    version = _version_of(found, sent)
    with transaction.atomic():
        change_note(locked_version(version), note, actor=acting.name, now=database_now())
    address = f"{reverse('change_model', args=[found.name])}?team={acting.team.pk}"
    fields = {"act": "note", "number": str(version.number), "note": version.note}
    undo = UndoForm(address=address, fields=fields) if version.note != note else None
    return Done(f"Note on version {version.number} saved.", undo)


def _remove_version(acting: Acting, found: RegisteredModel, sent: Mapping[str, str]) -> str:
    _refuse_unless_removing(acting)
    version = _version_of(found, sent)
    with transaction.atomic():
        locked_model(found)  # before its versions, as when one is promoted
        remove_version(locked_version(version), actor=acting.name, now=database_now())
    return f"Version {version.number} was removed from the registry. Its checkpoint is kept and stays pinned."


def _remove(acting: Acting, found: RegisteredModel, sent: Mapping[str, str]) -> str:
    _refuse_unless_removing(acting)
    with transaction.atomic():
        remove_model(locked_model(found), actor=acting.name, now=database_now())
    return f"{found.name} was removed from the registry. A later model of this name continues the version numbers."


_CHANGES: Final[Mapping[str, Callable[[Acting, RegisteredModel, Mapping[str, str]], Done | str]]] = {
    "note": _note,
    "remove_version": _remove_version,
    "remove": _remove,
}


def _model_of(acting: Acting, name: str) -> RegisteredModel:
    try:
        return the_model(acting.team, name)
    except NotFound as refusal:
        raise Http404(refusal.detail) from None


def _version_of(found: RegisteredModel, sent: Mapping[str, str]) -> ModelVersion:
    """Raises `NotFound`."""
    return the_version(found, min(read_count(sent.get("number", "")) or 0, 2**31 - 1))


def _may_remove(acting: Acting) -> bool:
    return "checkpoints:write" in acting.scopes and acting.role in MAY_REMOVE


def _refuse_unless_removing(acting: Acting) -> None:
    if not _may_remove(acting):
        raise Denied("Only team admins and owners can remove models from the registry.")
