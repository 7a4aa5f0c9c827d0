"""Assets, as somebody may see them.

Invariants:
- a thing of another team is answered exactly like one that does not exist; what an operator registered for everybody is
  everybody's to read, and nobody's to change;
- a key that is limited to a project sees that project's assets and those of the whole team, and changes its own only.
"""

import re
from collections.abc import Sequence

from django.db.models import Count, Q, QuerySet

from backend.accounts.models import Project, Team
from backend.accounts.services import Caller
from backend.assets.models import Asset, AssetFile, AssetKind, AssetPart, AssetState, AssetUse
from backend.checkpoints.models import RegisteredModel
from backend.checkpoints.uploads import UploadedVersion
from backend.errors import Denied, NotFound
from backend.jobs.models import TERMINAL_STATES
from engine.spec.asset_manifest import AssetManifest, ManifestFile, num_parts

_ASSET_ID = re.compile(r"asset_[0-9a-z]{20}", re.ASCII)
MOST_NAMES = 500  # of them a reader picks one; who has more types it
UNKNOWN = "There is no data set or model with this id."


def assets_of(team: Team, *, project: str | None = None) -> QuerySet[Asset]:
    """Newest first, without those that are gone. `project`: as far as that one may see."""
    found = Asset.objects.filter(Q(team=team) | Q(team=None), state__in=(AssetState.UPLOADING, AssetState.READY))
    if project is not None:
        found = found.filter(Q(project=None) | Q(project=project))
    return found.order_by("-created_at", "-id")


def names_for(projects: Sequence[Project], kind: AssetKind) -> list[str]:
    """As specs in these projects may name what is ready: the newest by its name, and each version."""
    rows = Asset.objects.filter(Q(team__in=[each.team_id for each in projects]) | Q(team=None))
    rows = rows.filter(Q(project=None) | Q(project__in=projects), state=AssetState.READY, kind=kind)
    found = rows.order_by("name", "-version").values_list("name", "version")[:MOST_NAMES]
    return list(dict.fromkeys(said for name, version in found for said in (name, f"{name}@{version}")))


def assets_seen_by(caller: Caller) -> QuerySet[Asset]:
    return assets_of(caller.team, project=caller.key.project_id)


def the_asset(caller: Caller, asset_id: str) -> Asset:
    """Raises `NotFound`."""
    found = assets_seen_by(caller).filter(pk=asset_id).first() if _ASSET_ID.fullmatch(asset_id) else None
    if found is None:
        raise NotFound(UNKNOWN)
    return found


def the_own_asset(caller: Caller, asset_id: str) -> Asset:
    """One that the caller may change. Raises `NotFound`, `Denied`."""
    asset = the_asset(caller, asset_id)
    if asset.team_id is None:
        raise Denied("An operator registered this for everybody; no team changes it.")
    if caller.key.project_id not in (None, asset.project_id):
        raise Denied(f"This key changes assets of the project {caller.key.project_id} only.")
    return asset


def the_file(asset: Asset, number: int) -> AssetFile:
    """Raises `NotFound`."""
    found = AssetFile.objects.filter(asset=asset, number=number).first()
    if found is None:
        raise NotFound("This asset has no file of this number.")
    return found


def received_parts(asset: Asset) -> int:
    return AssetPart.objects.filter(file__asset=asset).count()


def incomplete_files(asset: Asset) -> list[str]:
    """Names of files that lack a part."""
    rows = asset.files.annotate(received=Count("parts"))
    return [file.name for file in rows if file.received != num_parts(file.num_bytes)]


def manifest_of(asset: Asset) -> AssetManifest:
    """Of one that lacks nothing."""
    rows = asset.files.prefetch_related("parts")
    return AssetManifest(
        files=[
            ManifestFile(name=row.name, num_bytes=row.num_bytes, parts=[part.sha256 for part in row.parts.all()])
            for row in rows
        ]
    )


def uploads_of_model(model: RegisteredModel) -> list[UploadedVersion]:
    """Fills the port `checkpoints.uploads.uploads_of`."""
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
    """Of these, those that a job needs which is not over, and that job."""
    uses = AssetUse.objects.filter(asset__in=asset_ids).exclude(job__state__in=TERMINAL_STATES)
    return dict(uses.values_list("asset_id", "job_id"))
