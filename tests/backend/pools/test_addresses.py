"""A pool's Ray and its token: which file is read, and where the site's own token is sent."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings

from backend.jobs.attempts.launcher import ray_of
from backend.pools.clusters.addresses import RayAddress, TokenMissing, refuse_address, token_of, url_of
from backend.pools.clusters.dashboard import RayRefused
from backend.pools.models import ResourcePool

ELSEWHERE = "http://ray.example.org:8265"


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one token, and another file next to it."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "east").write_text("of-the-east\n")
    (tmp_path / "site").write_text("of-the-site\n")
    own = replace(settings.ENVIRONMENT, ray_token_file=tmp_path / "site", ray_tokens_dir=str(folder))
    monkeypatch.setattr(settings, "ENVIRONMENT", own)
    return folder


def test_the_sites_token_goes_to_the_sites_ray_and_to_no_other(tokens: Path) -> None:
    assert (url_of(RayAddress()), token_of(RayAddress())) == (settings.ENVIRONMENT.ray_url, "of-the-site")
    assert (url_of(RayAddress(url=ELSEWHERE)), token_of(RayAddress(url=ELSEWHERE))) == (ELSEWHERE, "")
    assert token_of(RayAddress(url=ELSEWHERE, token="east")) == "of-the-east"


@pytest.mark.parametrize("name", ["../site", "/etc/hostname", "..", ".", "", "east/../../site", "no\nne", "west"])
def test_a_name_leads_to_a_file_of_the_folder_or_nowhere(tokens: Path, name: str) -> None:
    address = RayAddress(url=ELSEWHERE, token=name)
    if not name:
        assert token_of(address) == ""
        return
    with pytest.raises(TokenMissing) as refused:
        token_of(address)
    assert "of-the-site" not in str(refused.value)


def test_file_without_token_is_reported(tokens: Path) -> None:
    for content in (" \n", "two\nlines", "\x00"):
        (tokens / "east").write_text(content)
        with pytest.raises(TokenMissing, match=r"'east' in LAMINAR_RAY_TOKENS_DIR is empty or not a token"):
            token_of(RayAddress(url=ELSEWHERE, token="east"))


def test_renewed_token_is_used_at_once_and_not_stored(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    pool = ResourcePool(name="east", ray_url=ELSEWHERE, ray_token="east")
    before = ray_of(pool)
    assert ray_of(ResourcePool(name="beside it", ray_url=ELSEWHERE, ray_token="east")) is before
    (tokens / "east").write_text("renewed")
    after = ray_of(pool)
    assert after is not before and after._ray._client.headers["Authorization"] == "Bearer renewed"
    (tokens / "east").unlink()
    with pytest.raises(RayRefused, match="cannot be read: FileNotFoundError"):
        ray_of(pool)
    assert "renewed" not in caplog.text and "renewed" not in repr(after) + repr(pool)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ray:8265",
            "ftp://ray",
            "http://",
            "http://:8265",
            "//ray",
            "http://ray:x",
            "http://ray:0",
            "http://ray:99999",
        ),
        *("http://me:secret@ray", "http://ray?x=1", "http://ray#x", "http://ray /x", "http://ray\n", "http://[::1"),
        "http://" + "a" * 300,
    ],
)
def test_an_address_that_is_none_of_a_jobs_api_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the address of a Ray's Jobs API, without user and password"):
        refuse_address(url)


def test_an_address_may_have_a_port_and_a_path() -> None:
    assert refuse_address("https://cluster.example.org/ray/") == "https://cluster.example.org/ray"
    assert refuse_address("http://[fd00::7]:8265") == "http://[fd00::7]:8265"
