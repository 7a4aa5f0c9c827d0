"""Environments: a description, the parameters, and an example with its reward.

Invariant: this module holds no content of its own. Parameters come from the table that validates specs, and examples
are recorded from the real environments (engine/environments/examples.py; a test records them again).
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from backend.jobs.submitting.templates import gallery
from engine.spec.environments.params import ENVIRONMENTS
from engine.spec.environments.sandbox import needs_sandbox


@require_safe
@login_required
def environments(request: HttpRequest) -> HttpResponse:
    shown = [
        {
            "name": name,
            "entry": entry,
            "params": list(entry.params.items()),
            "needs_sandbox": needs_sandbox(name, {}),
            "example": _examples()[name],
            "templates": [each for each in gallery() if each.spec.environment.name == name][:3],
        }
        for name, entry in ENVIRONMENTS.items()
    ]
    return render(request, "pages/environments.html", {"environments": shown})


@cache
def _examples() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((files("engine.spec.environments") / "examples.json").read_text("utf-8"))
    return found
