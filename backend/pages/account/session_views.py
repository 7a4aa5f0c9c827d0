"""The user's browser sessions, and ending them."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.accounts.sessions.devices import device_of
from backend.accounts.sessions.ending import end_other_sessions, end_session, sessions_of
from backend.accounts.sessions.following import idle_limit, whole_limit
from backend.clock import database_now
from backend.errors import NotFound
from backend.pages.views import user_of


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def sessions(request: HttpRequest) -> HttpResponse:
    """POST ends one session, or all others."""
    user, now, own = user_of(request), database_now(), request.session.session_key
    if request.method == "POST":
        if "others" in request.POST:
            number = end_other_sessions(user, keep=own, now=now)
            messages.success(request, f"{number or 'No'} other session{'' if number == 1 else 's'} ended.")
        else:
            try:
                end_session(user, request.POST.get("end", ""), now=now)
            except NotFound:
                raise Http404("This session does not exist, or it belongs to another user.") from None
            messages.success(request, "Session ended.")
        return redirect("account_sessions")
    rows = [
        {"row": row, "device": device_of(row.user_agent), "is_own": row.pk == own} for row in sessions_of(user, now=now)
    ]
    context = {
        "rows": rows,
        "num_others": sum(not row["is_own"] for row in rows),
        "idle_hours": round(idle_limit().total_seconds() / 3_600),
        "days": whole_limit().days,
        "now": now,
    }
    return render(request, "account/sessions.html", context)
