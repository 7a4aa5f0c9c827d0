"""Resolves assets named in specs: fills the port `jobs.attempts.library`.

Invariants:
- a team's own asset precedes a shared one of the same name; other teams' assets are never considered;
- a job's assets are recorded in the transaction that creates the job, so none of them can be deleted before.
"""

from collections.abc import Sequence
from typing import Any

from django.db.models import F, QuerySet

from backend.accounts.models import Team
from backend.assets.models import Asset, AssetOrigin, AssetState, AssetUse
from backend.assets.selectors import assets_of
from backend.assets.using.tokens import asset_token
from backend.jobs.attempts.asset_catalog import ResolvedAsset
from backend.jobs.models import Job
from engine.spec.assets.named_assets import AssetKind, NamedAsset, reference_of
from engine.spec.control import OrderedAsset, OrderedAssets


class AssetsOfTeams:
    def find(self, team: Team, project: str | None, named: Sequence[NamedAsset]) -> list[ResolvedAsset]:
        found = []
        for each in named:
            asset = _resolve(team, project, each.kind, each.name)
            if asset is not None:
                reference = f"{asset.name}@{asset.version}"
                found.append(ResolvedAsset(pointer=each.pointer, id=asset.pk, reference=reference))
        return found

    def keep(self, job: Job, found: Sequence[ResolvedAsset]) -> None:
        AssetUse.objects.bulk_create(
            [AssetUse(job=job, asset_id=each.id, pointer=each.pointer) for each in found],
        )

    def order_for(self, job: Job, *, attempt: int, fence: int) -> OrderedAssets | None:
        uses = list(AssetUse.objects.filter(job=job).select_related("asset").order_by("pointer"))
        if not uses:
            return None
        ordered = [_to_order(use.pointer, use.asset) for use in uses]
        return OrderedAssets(token=asset_token(job.pk, attempt, fence), assets=ordered)

    def config_of(self, team: Team, source: str) -> dict[str, Any] | None:
        asset = _resolve(team, None, "model", source)
        config: dict[str, Any] | None = None if asset is None else asset.config
        return config


def _resolve(team: Team, project: str | None, kind: AssetKind, text: str) -> Asset | None:
    reference = reference_of(text)
    if reference is None:
        return None
    name, version = reference
    rows: QuerySet[Asset] = assets_of(team, project=project).filter(state=AssetState.READY, kind=kind, name=name)
    if version is not None:
        rows = rows.filter(version=version)
    return rows.order_by(F("team").asc(nulls_last=True), "-version").first()


def _to_order(pointer: str, asset: Asset) -> OrderedAsset:
    return OrderedAsset(
        pointer=pointer,
        id=asset.pk,
        kind="model" if asset.kind == "model" else "data",
        sha256=asset.sha256,
        num_bytes=asset.num_bytes,
        place=asset.place if asset.origin == AssetOrigin.FOLDER else None,
    )
