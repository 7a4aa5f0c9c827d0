"""Parts that are replaced while their upload is being completed."""

from collections.abc import Callable
from threading import Event
from typing import Any, Final

import pytest

from backend.assets.models import Asset, AssetState
from backend.assets.uploads import upload as uploads
from backend.assets.uploads.contents import look_into
from backend.assets.uploads.upload import complete_upload, put_part
from backend.errors import Refusal
from tests.backend.assets.conftest import MODEL, begin, complete, manifest_of, parts_of, put, sha256_of
from tests.backend.conftest import NOW, Api
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)

WITHIN_S: Final = 60.0
WEIGHTS: Final = 1  # its number in the listing, which is sorted by name
MALFORMED: Final = MODEL | {"model.safetensors": b"\x80\x04pickled".ljust(len(MODEL["model.safetensors"]))}


@pytest.fixture
def asset(api: Api) -> Asset:
    """An upload whose weights are malformed."""
    begun = begin(api, MALFORMED, kind="model").json()["id"]
    for number, (_, content) in enumerate(sorted(MALFORMED.items())):
        assert put(api, begun, number, 0, content).status_code == 204
    return Asset.objects.get(pk=begun)


@pytest.fixture
def send(asset: Asset) -> Callable[[bytes], None]:
    def put_weights(content: bytes) -> None:
        (part,) = parts_of(content)
        put_part(asset.files.get(number=WEIGHTS), 0, part, sha256=sha256_of(part), now=NOW)

    return put_weights


def finish(asset: Asset) -> str:
    """The code of the refusal."""
    whole = manifest_of(MALFORMED)
    try:
        complete_upload(asset, num_bytes=whole.num_bytes, sha256=whole.sha256, actor="user:1", now=NOW)
    except Refusal as refusal:
        return refusal.code
    return ""


def test_parts_swapped_for_the_look_are_refused(
    asset: Asset,
    send: Callable[[bytes], None],
    in_own_connection: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The listed hash is of the malformed file; the well-formed one is there only while files are looked into."""
    is_hashed, is_good, is_looked_into, is_bad_again = Event(), Event(), Event(), Event()

    def look(looked: Asset) -> dict[str, Any] | None:
        is_hashed.set()
        assert is_good.wait(WITHIN_S)
        config = look_into(looked)
        is_looked_into.set()
        assert is_bad_again.wait(WITHIN_S)
        return config

    def swap() -> str:
        assert is_hashed.wait(WITHIN_S)
        send(MODEL["model.safetensors"])
        is_good.set()
        assert is_looked_into.wait(WITHIN_S)
        send(MALFORMED["model.safetensors"])
        is_bad_again.set()
        return ""

    monkeypatch.setattr(uploads, "look_into", look)
    assert race(in_own_connection(lambda: finish(asset)), in_own_connection(swap)) == ["parts_changed", ""]
    asset.refresh_from_db()
    assert asset.state == AssetState.UPLOADING and finish(asset) == "invalid"


def test_completing_again_after_a_swap_succeeds(
    api: Api, asset: Asset, send: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_and_replace(looked: Asset) -> dict[str, Any] | None:
        config = look_into(looked)
        monkeypatch.setattr(uploads, "look_into", look_into)
        send(MALFORMED["model.safetensors"])
        send(MODEL["model.safetensors"])
        return config

    send(MODEL["model.safetensors"])
    monkeypatch.setattr(uploads, "look_into", look_and_replace)
    refused = complete(api, asset.pk, MODEL)
    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (409, "parts_changed", True)
    assert complete(api, asset.pk, MODEL).json()["state"] == "ready"
