"""Every address of the control plane."""

from django.contrib import admin
from django.urls import include, path

from backend.health import healthz, readyz
from backend.rest import api
from backend.telemetry.internal_api import internal_api

urlpatterns = [
    path("api/v1/", api.urls),
    path("internal/engine/", internal_api.urls),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("healthz", healthz),
    path("readyz", readyz),
    path("", include("backend.pages.urls")),
]
