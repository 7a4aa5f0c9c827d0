"""The help page, and the signed-in user of a request."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from backend.accounts.models import User
from backend.jobs.models import JobState
from backend.pages import curl, words
from backend.pages.glossary import GLOSSARY


def user_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "every page has login_required"
    return request.user


@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    example = {"project": "PROJECT_ID", "spec": {"name": "From the terminal", "training": {"steps": 60}}}
    context = {
        "glossary": GLOSSARY,
        "states": [(state, words.STATE_MEANING[state]) for state in JobState.values],
        "list_curl": curl.get("/jobs"),
        "submit_curl": curl.post("/jobs", example, idempotent=True),
        "metrics_curl": curl.get("/jobs/JOB_ID/metrics", names=("reward/mean",)),
        "api_docs": "/api/v1/docs",
    }
    return render(request, "pages/help.html", context)
