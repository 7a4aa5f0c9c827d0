"""Models and data sets on the nodes, as last reported, stored with the examination of the nodes.

Invariants:
- a team sees its own and shared assets, and on how many nodes they are; other names are for operators only;
- an old report is no reason to refuse or to warn: see `is_fresh`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import BaseModel

from backend.operating.models import Examination
from engine.spec.node_report import NodeAsset, NodeReport

_ROW: Final = "found on nodes"
FRESH_FOR: Final = timedelta(hours=24)


class _Node(BaseModel):
    models: list[NodeAsset]
    data: list[NodeAsset]
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
    """None: no report yet."""
    num_nodes: int
    """Nodes that reported their files."""
    models: Sequence[OnNodes]
    data: Sequence[OnNodes]
    fetched: Counter[str]
    """Number of nodes that have the asset, by its hash."""

    def is_fresh(self, now: datetime) -> bool:
        return self.num_nodes > 0 and self.at is not None and now - self.at < FRESH_FOR

    def num_with(self, kind: str, place: str) -> int:
        """Number of nodes with this entry of the folder models/ or data/."""
        return next(
            (each.num_nodes for each in (self.models if kind == "model" else self.data) if each.name == place), 0
        )


def keep_found(reports: Sequence[NodeReport], *, now: datetime) -> None:
    """Replaces the previous reports."""
    nodes = [
        _Node(models=each.models, data=each.data, fetched=each.fetched).model_dump()
        for each in reports
        if not each.silent
    ]
    if nodes:
        Examination.objects.update_or_create(pk=_ROW, defaults={"began_at": now, "ended_at": now, "parts": nodes})


def found_on_nodes() -> FoundOnNodes:
    row = Examination.objects.filter(pk=_ROW).first()
    nodes = [_Node.model_validate(each) for each in row.parts] if row else []
    return FoundOnNodes(
        at=row.ended_at if row else None,
        num_nodes=len(nodes),
        models=_count([each.models for each in nodes]),
        data=_count([each.data for each in nodes]),
        fetched=Counter(sha256 for each in nodes for sha256 in set(each.fetched)),
    )


def _count(of_nodes: Sequence[Sequence[NodeAsset]]) -> list[OnNodes]:
    nums = Counter(name for assets in of_nodes for name in {each.name for each in assets})
    one_of = {each.name: each for assets in of_nodes for each in assets}
    return [
        OnNodes(name=name, kind=one_of[name].kind, num_bytes=one_of[name].num_bytes, num_nodes=nums[name])
        for name in sorted(nums)
    ]
