"""GET /internal/engine/assets/<id>/manifest and …/parts/<sha256>: what an attempt's nodes fetch.

    node ──▶ here ──302──▶ the bucket, by a link of five minutes
                 ──200──▶ the bytes, if the store is a folder

Invariants:
- no node holds a key of the bucket: it gets a link for one object, when it requests it;
- a part is served only under its hash in the manifest.
"""

from collections.abc import Iterator
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from backend.api.problems import Unauthenticated, Unavailable, problem_response
from backend.assets.models import Asset, AssetOrigin, AssetPart
from backend.assets.places import where_is
from backend.assets.selectors import manifest_of
from backend.assets.using.tokens import asset_of_token
from backend.checkpoints.downloads.export import unblocked
from backend.errors import NotFound, Refusal
from backend.store.chosen import store
from backend.store.port import StoreUnavailable
from engine.spec.assets.asset_manifest import RANGE, part_bytes

LINK_S: Final = 300
READ_BYTES: Final = 2**20


@require_GET
def manifest(request: HttpRequest, asset_id: str) -> HttpResponseBase:
    try:
        asset = _authorized_asset(request, asset_id)
    except Refusal as refusal:
        return problem_response(request, refusal)
    return HttpResponse(manifest_of(asset).model_dump_json(), content_type="application/json")


@require_GET
def part(request: HttpRequest, asset_id: str, sha256: str) -> HttpResponseBase:
    try:
        asset = _authorized_asset(request, asset_id)
        row = AssetPart.objects.select_related("file__asset").filter(file__asset=asset, sha256=sha256).first()
        if row is None or asset.origin == AssetOrigin.FOLDER:
            raise NotFound("Part not found.")
        (key, start), num_bytes = where_is(row), part_bytes(row.file.num_bytes, row.number)
        link = store().presigned_url(key, expires_in_s=LINK_S)
        if link is not None:
            return HttpResponseRedirect(link, headers={RANGE: f"bytes={start}-{start + num_bytes - 1}"})
        first = store().get_range(key, start, min(READ_BYTES, num_bytes))
    except StoreUnavailable:
        return problem_response(request, Unavailable("The store is not responding. Try again in a moment."))
    except Refusal as refusal:
        return problem_response(request, refusal)
    pieces = unblocked(_read_pieces(key, first, range(start, start + num_bytes)))
    response = StreamingHttpResponse(pieces, content_type="application/octet-stream")
    response["Content-Length"] = str(num_bytes)
    return response


def _read_pieces(key: str, first: bytes, wanted: range) -> Iterator[bytes]:
    yield first
    for start in range(wanted.start + len(first), wanted.stop, READ_BYTES):
        yield store().get_range(key, start, min(READ_BYTES, wanted.stop - start))


def _authorized_asset(request: HttpRequest, asset_id: str) -> Asset:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    asset = asset_of_token(token, asset_id) if scheme == "Bearer" else None
    if asset is None:
        raise Unauthenticated("This token is invalid for this asset, or has expired.")
    return asset
