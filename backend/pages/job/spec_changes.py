"""Differences between the spec of a retried or continued job and its predecessor's."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backend.jobs.models import Job
from backend.pages.job.panels.lineage import Lineage

_NAMES: Final = {"name", "tags"}
"""Fields that do not affect training."""
_ABSENT: Final = object()
_LONGEST: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    path: str
    before: str
    after: str


def forerunner_of(lineage: Lineage) -> Job | None:
    return lineage.retry_of or (lineage.began_with.job if lineage.began_with else None)


def changes_since(forerunner: Job, job: Job) -> Sequence[SpecChange]:
    before, after = dict(_leaves(forerunner.spec)), dict(_leaves(job.spec))
    paths = sorted({*before, *after} - _NAMES)
    pairs = [(path, before.get(path, _ABSENT), after.get(path, _ABSENT)) for path in paths]
    return [
        SpecChange(path=path, before=_format_value(old), after=_format_value(new))
        for path, old, new in pairs
        if old != new
    ]


def _leaves(spec: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in spec.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _format_value(value: Any) -> str:  # whatever a spec holds
    if value is _ABSENT:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
