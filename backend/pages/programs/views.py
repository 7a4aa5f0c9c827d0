"""The client at /client/ and the guide for programs at /docs/api: public, since they hold no team's data."""

import hashlib

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from backend.pages.programs.guide import guide, wheel_url
from backend.pages.programs.wheel import project, wheel, wheel_name


@require_safe
def client_page(request: HttpRequest) -> HttpResponse:
    """Also the index for `pip install --find-links`."""
    context = {
        "wheel_url": wheel_url(),
        "wheel_name": wheel_name(),
        "sha256": hashlib.sha256(wheel()).hexdigest(),
        "num_bytes": len(wheel()),
        "python": project()["requires-python"].removeprefix(">="),
    }
    return render(request, "pages/programs/client.html", context)


@require_safe
def client_wheel(request: HttpRequest) -> HttpResponse:
    headers = {
        "Content-Disposition": f'attachment; filename="{wheel_name()}"',
        "ETag": f'"{hashlib.sha256(wheel()).hexdigest()}"',
    }
    return HttpResponse(wheel(), content_type="application/octet-stream", headers=headers)


@require_safe
def api_guide(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/programs/guide.html", guide())
