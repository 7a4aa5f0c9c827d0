"""The models and data sets that lie on the nodes, as they last reported it, kept beside the examination of the nodes.

Invariants:
- a team is told of what is its own or everybody's, on how many nodes it lies; the names of whatever else lies there are
  for operators;
- what was found long ago is no ground to refuse or to warn: `is_fresh` says so.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel

from backend.operating.models import Examination
from engine.spec.node_report import FoundAsset, NodeReport

_ROW: Final = "found on nodes"
FRESH_FOR: Final = timedelta(hours=24)


class _Node(BaseModel):
    models: list[FoundAsset]
    data: list[FoundAsset]
    fetched: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNodes:
    """An entry of the shared folder, as nodes see it."""

    name: str
    kind: str
    num_bytes: int
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOnNodes:
    at: datetime | None
    """None: nobody has looked yet."""
    num_nodes: int
    """That told of what lies on them."""
    models: Sequence[OnNodes]
    data: Sequence[OnNodes]
    fetched: Counter[str]
    """Nodes that have it, by its hash."""

    def is_fresh(self, now: datetime) -> bool:
        return self.num_nodes > 0 and self.at is not None and now - self.at < FRESH_FOR

    def num_with(self, kind: str, place: str) -> int:
        """Nodes that have this entry of the folder models/ or data/."""
        return next(
            (each.num_nodes for each in (self.models if kind == "model" else self.data) if each.name == place), 0
        )


def keep_found(reports: Sequence[NodeReport], *, now: datetime) -> None:
    """Instead of what was found before."""
    told = [
        _Node(models=each.models, data=each.data, fetched=each.fetched).model_dump()
        for each in reports
        if not each.silent
    ]
    if told:
        Examination.objects.update_or_create(pk=_ROW, defaults={"began_at": now, "ended_at": now, "parts": told})


def found_on_nodes() -> FoundOnNodes:
    row = Examination.objects.filter(pk=_ROW).first()
    nodes = [_Node.model_validate(each) for each in row.parts] if row else []
    return FoundOnNodes(
        at=row.ended_at if row else None,
        num_nodes=len(nodes),
        models=_counted([each.models for each in nodes]),
        data=_counted([each.data for each in nodes]),
        fetched=Counter(sha256 for each in nodes for sha256 in set(each.fetched)),
    )


def _counted(of_nodes: Sequence[Sequence[FoundAsset]]) -> list[OnNodes]:
    nums = Counter(name for found in of_nodes for name in {each.name for each in found})
    one_of = {each.name: each for found in of_nodes for each in found}
    return [
        OnNodes(name=name, kind=one_of[name].kind, num_bytes=one_of[name].num_bytes, num_nodes=nums[name])
        for name in sorted(nums)
    ]
