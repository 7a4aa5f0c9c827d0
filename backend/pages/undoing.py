"""What was just done, with the way back, where there is one that brings back all of it.

    act ──▶ Done(said, undo) ──▶ the next page's toast ──Undo──▶ a POST to a page of ours ──▶ Done(said, undo) …

Invariants:
- the way back is a page of ours that takes a POST and asks for the same right again;
- it carries the version that the act left, where there are versions: what somebody else changed since is not undone;
- where nothing was changed, or what is typed would not be what was, there is none.
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
class WayBack:
    address: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """Of its form."""


@dataclass(frozen=True, slots=True)
class Done:
    said: str
    undo: WayBack | None = None


def tell_done(request: HttpRequest, done: Done | str) -> None:
    if isinstance(done, str) or done.undo is None:
        messages.success(request, done if isinstance(done, str) else done.said)
        return
    told = json.dumps([done.undo.address, dict(done.undo.fields)])
    messages.success(request, done.said, extra_tags=_MARK + told)


def undo_of(message: Message) -> WayBack | None:
    """None: there is no way back, or none that we know of."""
    tags = message.extra_tags or ""
    if not tags.startswith(_MARK):
        return None
    address, fields = json.loads(tags.removeprefix(_MARK))
    return WayBack(address=address, fields=fields)
