"""Every URL of the control plane."""

from django.contrib import admin
from django.urls import include, path

from backend.assets.using.serving import manifest as asset_manifest
from backend.assets.using.serving import part as asset_part
from backend.checkpoints.downloads.views import download as download_checkpoint
from backend.feeds.prometheus import metrics
from backend.health import healthz, readyz
from backend.pages.programs.reference import api_reference
from backend.rest import api
from backend.telemetry.intake.internal_api import internal_api

urlpatterns = [
    path("api/v1/docs", api_reference, {"api": api}, name="api_reference"),
    path("api/v1/", api.urls),
    path("internal/engine/assets/<id:asset_id>/manifest", asset_manifest),
    path("internal/engine/assets/<id:asset_id>/parts/<id:sha256>", asset_part),
    path("internal/engine/", internal_api.urls),
    path("accounts/", include("backend.pages.account.urls")),
    path("admin/", admin.site.urls),
    path("downloads/checkpoints/<token:token>", download_checkpoint, name="checkpoint-download"),
    path("healthz", healthz),
    path("readyz", readyz),
    path("metrics", metrics),
    path("", include("backend.pages.urls")),
]
