"""ETag and If-Match: no write overwrites an unseen change."""

import pytest

from backend.api.etags import PreconditionFailed, etag_of, refuse_if_changed


@pytest.mark.parametrize("sent", [None, "*", '"7"', '"6", "7"', 'W/"6", "7"', ' "7" '])
def test_current_etag_allows_the_change(sent: str | None) -> None:
    refuse_if_changed(sent, etag_of(7))


@pytest.mark.parametrize("sent", ['"6"', 'W/"7"', "7", '"77"', '"7', "", '"6","8"', "W/*"])
def test_stale_etag_gets_the_current_one(sent: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        refuse_if_changed(sent, etag_of(7))
    assert refused.value.headers == {"ETag": '"7"'} and refused.value.status == 412


def test_a_tag_is_made_of_whatever_changes() -> None:
    assert etag_of("pool_a", 3) == '"pool_a-3"'
    with pytest.raises(AssertionError):
        etag_of('with "quotes"')
