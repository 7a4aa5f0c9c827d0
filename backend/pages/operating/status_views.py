"""The site's problems and their remedies, as printed by `manage.py doctor`.

Invariants:
- only operators see the page;
- a request waits for at most one check, and checks run no more often than `status` allows.
"""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.clock import database_now
from backend.operating.checks.findings import Verdict
from backend.operating.status import OF_THE_NODES, OF_THE_SITE, check_again, last_seen
from backend.pages.views import user_of


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def status(request: HttpRequest) -> HttpResponse:
    """POST checks Ray's nodes, from within the cluster."""
    if not user_of(request).is_staff:
        raise PermissionDenied("Only operators of the site can view this page.")
    if request.method == "POST":
        if not check_again(OF_THE_NODES):
            messages.info(request, "A check is running, or ran within the last minute.")
        return redirect("status")
    check_again(OF_THE_SITE)
    seen = [last_seen(kind) for kind in (OF_THE_SITE, OF_THE_NODES)]
    parts = [(each.at, part) for each in seen if each for part in each.parts]
    context = {
        "parts": parts,
        "num_wrong": sum(found.verdict is Verdict.WRONG for _, part in parts for found in part.findings),
        "num_warnings": sum(found.verdict is Verdict.WARNING for _, part in parts for found in part.findings),
        "saw_nodes": seen[1] is not None,
        "now": database_now(),
    }
    return render(request, "pages/operating/status.html", context)
