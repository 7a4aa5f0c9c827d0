"""Assets, as a caller may see them.

Invariants:
- another team's asset is treated like a missing one; assets that an operator registered for all teams are readable by
  all and changed by none;
- a key limited to a project sees that project's assets and those of the whole team, and changes only its project's.
"""

import re
from collections.abc import Sequence

from django.db.models import Count, Q, QuerySet

from backend.accounts.models import Project, Team
from backend.accounts.services import Caller
from backend.assets.models import Asset, AssetFile, AssetKind, AssetPart, AssetState, AssetUse
from backend.checkpoints.models import RegisteredModel
from backend.checkpoints.registry.uploads import UploadedVersion
from backend.errors import Denied, NotFound
from backend.jobs.models import TERMINAL_STATES
from engine.spec.assets.asset_manifest import AssetManifest, ManifestFile, num_parts

_ASSET_ID = re.compile(r"asset_[0-9a-z]{20}", re.ASCII)
MOST_NAMES = 500  # for a selection list; other names can be typed
UNKNOWN = "Data set or model not found."


def assets_of(team: Team, *, project: str | None = None) -> QuerySet[Asset]:
    """Newest first, without deleted ones. `project`: limits them to what that project may see."""
    rows = Asset.objects.filter(Q(team=team) | Q(team=None), state__in=(AssetState.UPLOADING, AssetState.READY))
    if project is not None:
        rows = rows.filter(Q(project=None) | Q(project=project))
    return rows.order_by("-created_at", "-id")


def names_for(projects: Sequence[Project], kind: AssetKind) -> list[str]:
    """Names of ready assets for specs of these projects: the bare name, and each version."""
    rows = Asset.objects.filter(Q(team__in=[each.team_id for each in projects]) | Q(team=None))
    rows = rows.filter(Q(project=None) | Q(project__in=projects), state=AssetState.READY, kind=kind)
    versions = rows.order_by("name", "-version").values_list("name", "version")[:MOST_NAMES]
    return list(dict.fromkeys(text for name, version in versions for text in (name, f"{name}@{version}")))


def assets_seen_by(caller: Caller) -> QuerySet[Asset]:
    return assets_of(caller.team, project=caller.key.project_id)


def the_asset(caller: Caller, asset_id: str) -> Asset:
    """Raises `NotFound`."""
    asset = assets_seen_by(caller).filter(pk=asset_id).first() if _ASSET_ID.fullmatch(asset_id) else None
    if asset is None:
        raise NotFound(UNKNOWN)
    return asset


def the_own_asset(caller: Caller, asset_id: str) -> Asset:
    """An asset that the caller may change. Raises `NotFound`, `Denied`."""
    asset = the_asset(caller, asset_id)
    if asset.team_id is None:
        raise Denied("An operator registered this asset for all teams. Teams cannot change it.")
    if caller.key.project_id not in (None, asset.project_id):
        raise Denied(f"This key can change only assets of the project {caller.key.project_id}.")
    return asset


def the_file(asset: Asset, number: int) -> AssetFile:
    """Raises `NotFound`."""
    file = AssetFile.objects.filter(asset=asset, number=number).first()
    if file is None:
        raise NotFound(f"This asset has no file {number}. GET /assets/{asset.pk}/files lists its files.")
    return file


def received_parts(asset: Asset) -> int:
    return AssetPart.objects.filter(file__asset=asset).count()


def objects_of(asset: Asset) -> frozenset[str]:
    """Names of the objects that hold its received parts."""
    return frozenset(AssetPart.objects.filter(file__asset=asset).values_list("stored_as", flat=True))


def incomplete_files(asset: Asset) -> list[str]:
    """Names of files that lack a part."""
    rows = asset.files.annotate(received=Count("parts"))
    return [file.name for file in rows if file.received != num_parts(file.num_bytes)]


def manifest_of(asset: Asset) -> AssetManifest:
    """Of a complete asset."""
    rows = asset.files.prefetch_related("parts")
    return AssetManifest(
        files=[
            ManifestFile(name=row.name, num_bytes=row.num_bytes, parts=[part.sha256 for part in row.parts.all()])
            for row in rows
        ]
    )


def uploads_of_model(model: RegisteredModel) -> list[UploadedVersion]:
    """Fills the port `checkpoints.registry.uploads.uploads_of`."""
    rows = Asset.objects.filter(
        team=model.team_id, kind=AssetKind.MODEL, name=model.name, state=AssetState.READY
    ).order_by("-version")
    return [
        UploadedVersion(
            number=row.version or 0,
            asset=row.pk,
            sha256=row.sha256,
            num_bytes=row.num_bytes,
            created_at=row.ready_at or row.created_at,
            created_by=row.created_by,
        )
        for row in rows
    ]


def assets_in_use(asset_ids: Sequence[str]) -> dict[str, str]:
    """Those of these assets that a job which has not ended uses, with the job."""
    uses = AssetUse.objects.filter(asset__in=asset_ids).exclude(job__state__in=TERMINAL_STATES)
    return dict(uses.values_list("asset_id", "job_id"))
