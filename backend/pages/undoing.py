"""Messages about a completed action, with Undo if the action can be fully reverted, or, for a pause, continued from.

    act ──▶ Done(message, undo) ──▶ the next page's toast ──Undo──▶ a POST to a page of ours ──▶ Done(message, undo) …

Invariants:
- Undo is a POST to one of our pages, which checks the same permission again;
- for versioned objects it carries the version that the action left, so later changes by others are not overwritten;
- there is no Undo if nothing changed, or if the form cannot express the earlier value.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from django.contrib import messages
from django.contrib.messages.storage.base import Message
from django.http import HttpRequest

_MARK: Final = "undo:"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoForm:
    address: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """The fields of its form."""


@dataclass(frozen=True, slots=True)
class Done:
    message: str
    undo: UndoForm | None = None


def show_outcome(request: HttpRequest, done: Done | str) -> None:
    if isinstance(done, str) or done.undo is None:
        messages.success(request, done if isinstance(done, str) else done.message)
        return
    undo = json.dumps([done.undo.address, dict(done.undo.fields)])
    messages.success(request, done.message, extra_tags=_MARK + undo)


def undo_of(message: Message) -> UndoForm | None:
    """None: no Undo, or unknown."""
    tags = message.extra_tags or ""
    if not tags.startswith(_MARK):
        return None
    address, fields = json.loads(tags.removeprefix(_MARK))
    return UndoForm(address=address, fields=fields)
