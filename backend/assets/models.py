"""Assets of teams, their files and parts, and the quota of bytes of each team.

    uploading ──▶ ready ──▶ deleting ──▶ deleted
        └───────────────────▲

Invariants:
- a version number is assigned once, when an asset becomes ready, and never reused for the name, whatever is deleted;
- a ready asset never changes: jobs get its digest, and every node verifies it;
- a row is marked `deleting` before its bytes are touched, and counts against the quota until they are gone;
- an asset without a team belongs to all teams: an operator registered it.
"""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from backend.accounts.models import Project, Team
from backend.ids import new_id
from backend.jobs.models import Job


def _asset_id() -> str:
    return new_id("asset")


class AssetKind(models.TextChoices):
    DATA = "data"
    MODEL = "model"


class AssetState(models.TextChoices):
    UPLOADING = "uploading"
    READY = "ready"
    DELETING = "deleting"
    DELETED = "deleted"


class AssetOrigin(models.TextChoices):
    UPLOADED = "uploaded"  # its parts are objects of the store
    FOLDER = "folder"  # the operator put its files into the shared folder
    STORE = "store"  # its files are objects of the store, under a prefix of the operator


GONE = (AssetState.DELETING, AssetState.DELETED)


class Asset(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_asset_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, null=True, related_name="assets")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, null=True, related_name="assets")
    kind = models.CharField(max_length=5, choices=AssetKind.choices)
    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=9, choices=AssetState.choices, default=AssetState.UPLOADING)
    origin = models.CharField(max_length=8, choices=AssetOrigin.choices, default=AssetOrigin.UPLOADED)
    place = models.CharField(max_length=100, blank=True, default="")  # the entry in the shared folder, or the prefix
    num_bytes = models.PositiveBigIntegerField()
    num_files = models.PositiveIntegerField()
    num_parts = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, blank=True, default="")  # of its manifest, once it is ready
    config = models.JSONField(null=True)  # a model's config.json
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=80)  # an actor: "key:…", "user:…"
    ready_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)  # of an upload: abandoned if no part arrives until then
    next_sweep_at = models.DateTimeField(null=True)  # of a deletion; also the sweeper's claim
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(state__in=AssetState.values), name="asset_state_known"),
            models.CheckConstraint(condition=Q(kind__in=AssetKind.values), name="asset_kind_known"),
            models.CheckConstraint(
                condition=Q(state="uploading", version__isnull=True, expires_at__isnull=False)
                | Q(state="ready", version__isnull=False, ready_at__isnull=False, sha256__gt="")
                | Q(state__in=GONE),
                name="asset_ready_iff_versioned",
            ),
            models.CheckConstraint(
                condition=Q(state="deleted", deleted_at__isnull=False)
                | (~Q(state="deleted") & Q(deleted_at__isnull=True)),
                name="asset_deleted_iff_dated",
            ),
            models.UniqueConstraint(
                fields=["team", "kind", "name", "version"], nulls_distinct=False, name="one_asset_per_version",
                condition=Q(version__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["team", "kind", "name"], condition=Q(state="uploading"), name="one_upload_per_name"
            ),
        ]  # fmt: skip
        indexes: ClassVar = [
            # Work of the sweep.
            models.Index(fields=["expires_at"], condition=Q(state="uploading"), name="asset_upload_expiry"),
            models.Index(fields=["next_sweep_at"], condition=Q(state="deleting"), name="asset_sweep_due"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}@{self.version or '…'}"


class AssetFile(models.Model):
    """A file of the listing, whether or not any of its parts has arrived."""

    asset = models.ForeignKey(Asset, on_delete=models.CASCADE, related_name="files")
    number = models.PositiveIntegerField()  # by the order of the names
    name = models.CharField(max_length=200)
    num_bytes = models.PositiveBigIntegerField()

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["asset", "number"], name="one_file_per_number"),
            models.UniqueConstraint(fields=["asset", "name"], name="one_file_per_name"),
        ]


class AssetPart(models.Model):
    """A stored and verified part."""

    file = models.ForeignKey(AssetFile, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    stored_as = models.CharField(max_length=32, blank=True, default="")  # of an upload: the name of its own object

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["file", "number"], name="one_part_per_number")]


class AssetUse(models.Model):
    """An asset that a job's spec names, as resolved when the job was submitted."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="asset_uses")
    asset = models.ForeignKey(Asset, on_delete=models.PROTECT, related_name="uses")
    pointer = models.CharField(max_length=100)  # into the spec

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "pointer"], name="one_asset_per_place")]


class StorageQuota(models.Model):
    """A team's limit of bytes. The row is locked while bytes are reserved."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, primary_key=True, related_name="storage_quota")
    max_bytes = models.PositiveBigIntegerField(null=True)  # null: the site's default
