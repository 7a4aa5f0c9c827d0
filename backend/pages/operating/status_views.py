"""What is wrong with the site and what to do, as `manage.py doctor` says it.

Invariants:
- it is shown to operators, and others are told nothing;
- whoever opens it waits for one look at most, and makes nobody look more often than `status` lets them.
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
from backend.operating.status import OF_THE_NODES, OF_THE_SITE, last_seen, look_again
from backend.pages.views import user_of


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def status(request: HttpRequest) -> HttpResponse:
    """POST looks at Ray's nodes, from within."""
    if not user_of(request).is_staff:
        raise PermissionDenied("This page is for who operates the site.")
    if request.method == "POST":
        if not look_again(OF_THE_NODES):
            messages.info(request, "Somebody is looking, or has within the last minute.")
        return redirect("status")
    look_again(OF_THE_SITE)
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
