"""A team's data sets and models: finished ones, uploads in progress, and free storage.

Invariant: the page uploads nothing. It shows the command and the API call, which can resume an interrupted upload;
a browser form cannot.
"""

from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.defaultfilters import filesizeformat
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.assets.representations import AssetOut
from backend.assets.selectors import assets_of
from backend.assets.storage import storage_of
from backend.checkpoints.selectors import models_of
from backend.clock import database_now
from backend.operating.node_assets import found_on_nodes
from backend.pages import curl
from backend.pages.assets.on_nodes import entries_for_operators, where
from backend.pages.team.team_views import acting_in, frame_of
from backend.pages.views import user_of
from engine.spec.assets.named_assets import BUILT_IN_DATA, BUILT_IN_MODELS

NUM_SHOWN = 200
BEGIN = {"kind": "data", "name": "sums", "files": [{"name": "train.jsonl", "num_bytes": 1_234}]}

PUT = (
    'curl -s -T part.0 "{}?sha256=$(sha256sum < part.0 | cut -c-64)" \\\n'
    '  -H "Authorization: Bearer $LAMINAR_API_KEY" -H "Content-Type: application/octet-stream"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    asset: AssetOut
    size: str
    is_whole: bool
    where: str
    """On how many nodes, in words; empty: unknown."""


@require_safe
@never_cache
@login_required
def assets(request: HttpRequest) -> HttpResponse:
    acting = acting_in(request)
    storage = storage_of(acting.team)
    found, on_nodes = [(row, AssetOut.of(row)) for row in assets_of(acting.team)[:NUM_SHOWN]], found_on_nodes()
    context = frame_of(acting) | {
        "assets": [
            Shown(
                asset=each,
                size=filesizeformat(each.num_bytes),
                is_whole=each.state == "ready",
                where=where(row, on_nodes),
            )
            for row, each in found
        ],
        "on_nodes": on_nodes,
        "entries": entries_for_operators(on_nodes) if user_of(request).is_staff else [],
        "models": models_of(acting.team).annotate(num=Count("versions")).order_by("name")[:NUM_SHOWN],
        "used": filesizeformat(storage.used_bytes),
        "most": filesizeformat(storage.max_bytes),
        "may_upload": "data:write" in acting.scopes,
        "curl": curl.get("/assets"),
        "begin": curl.post("/assets", BEGIN),
        "put": PUT.format(curl.api_url("/assets/ASSET/files/0/parts/0")),
        "built_in": [("model", *each) for each in BUILT_IN_MODELS.items()]
        + [("data", *each) for each in BUILT_IN_DATA.items()],
        "now": database_now(),
    }
    return render(request, "pages/team/assets.html", context)
