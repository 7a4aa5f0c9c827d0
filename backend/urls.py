"""Every address of the control plane."""

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path

from backend.assets.using.serving import manifest as asset_manifest
from backend.assets.using.serving import part as asset_part
from backend.checkpoints.views import download as download_checkpoint
from backend.feeds.prometheus import metrics
from backend.health import healthz, readyz
from backend.rest import api
from backend.telemetry.internal_api import internal_api

# One sign-in for everybody: the admin's own has no limit on guesses.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns = [
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
