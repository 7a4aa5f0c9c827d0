"""On how many of the reporting nodes a team's data sets and models lie.

Invariant: only operators see entries of other teams, and entries that belong to no asset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from backend.accounts.models import Team
from backend.assets.models import Asset, AssetOrigin, AssetState
from backend.assets.selectors import assets_of
from backend.jobs.attempts.asset_catalog import ResolvedAsset
from backend.operating.node_assets import FoundOnNodes, OnNodes, found_on_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the nodes' shared folder, for operators."""

    found: OnNodes
    folder: str
    is_registered: bool


def num_nodes_with(asset: Asset, found: FoundOnNodes) -> int:
    if asset.origin == AssetOrigin.FOLDER:
        return found.num_with(asset.kind, asset.place)
    return found.fetched[asset.sha256] if asset.sha256 else 0


def where(asset: Asset, found: FoundOnNodes) -> str:
    """In words; empty: no node has reported, or the asset is incomplete."""
    if not found.num_nodes or asset.state != AssetState.READY:
        return ""
    num = num_nodes_with(asset, found)
    verb = "on" if asset.origin == AssetOrigin.FOLDER else "fetched by"
    return f"{verb} {num:,} of {found.num_nodes:,} node{'' if found.num_nodes == 1 else 's'}"


def entries_for_operators(found: FoundOnNodes) -> list[Entry]:
    folder = Asset.objects.filter(origin=AssetOrigin.FOLDER, state=AssetState.READY)
    registered = set(folder.values_list("kind", "place"))
    kinds: Sequence[tuple[str, Sequence[OnNodes]]] = (("model", found.models), ("data", found.data))
    return [
        Entry(found=each, folder="models" if kind == "model" else "data", is_registered=(kind, each.name) in registered)
        for kind, entries in kinds
        for each in entries
    ]


def doubts_of(named: Sequence[ResolvedAsset], team: Team, *, now: datetime) -> list[str]:
    """Warnings where the nodes' reports contradict the assets that a spec names. A warning refuses nothing: a file that
    was missing when the nodes were checked may be there when the job starts."""
    return list(_doubts(named, team, now)) if named else []


def _doubts(named: Sequence[ResolvedAsset], team: Team, now: datetime) -> Iterator[str]:
    found = found_on_nodes()
    on_disk = assets_of(team).filter(pk__in=[each.id for each in named], origin=AssetOrigin.FOLDER)
    for asset in on_disk.order_by("name"):
        name, num = f"{asset.name}@{asset.version}", found.num_with(asset.kind, asset.place)
        if not found.is_fresh(now):
            yield f"{name} is in the nodes' shared folder, but no node has confirmed it within a day."
        elif num < found.num_nodes:
            there = f"only on {num:,} of {found.num_nodes:,} nodes" if num else "on no node"
            yield f"{name} was found {there} at the last check. A job that starts elsewhere fails."
