"""Logins: readable only by their owner, and a key is sent only to its own server."""

from pathlib import Path

import pytest

from frontend.client.laminar_client import Laminar
from frontend.client.laminar_client.errors import BadSettings
from frontend.client.laminar_client.profiles import (
    Login,
    checked_url,
    config_file,
    forget_profile,
    resolve_login,
    store_profile,
    stored_profiles,
)

KEY, OTHER = "lam_live_12345678_" + "a" * 43, "lam_live_87654321_" + "b" * 43
HOME = Login(url="https://laminar.example.org", key=KEY)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_the_file_and_its_folder_are_the_users_alone(environment: dict[str, str]) -> None:
    path = config_file(environment)
    store_profile(path, "default", HOME)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    store_profile(path, "work", Login(url="http://127.0.0.1:8000", key=OTHER))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["config.toml"], "a temporary file was left behind"
    assert {name: login.key for name, login in stored_profiles(path).items()} == {"default": KEY, "work": OTHER}


def test_a_file_that_others_may_read_is_not_used(environment: dict[str, str]) -> None:
    path = config_file(environment)
    store_profile(path, "default", HOME)
    path.chmod(0o644)
    with pytest.raises(BadSettings, match="chmod 600"):
        resolve_login(environment=environment)


def test_the_environment_overrules_the_default_profile(environment: dict[str, str]) -> None:
    store_profile(config_file(environment), "default", HOME)
    assert resolve_login(environment=environment).key == KEY
    told = environment | {"LAMINAR_URL": "http://127.0.0.1:9", "LAMINAR_API_KEY": OTHER}
    assert resolve_login(environment=told) == Login(url="http://127.0.0.1:9", key=OTHER, source="the environment")
    assert resolve_login("default", environment=told).key == KEY, "a profile that was named is meant"


def test_stored_key_is_not_sent_to_url_of_environment(environment: dict[str, str]) -> None:
    store_profile(config_file(environment), "default", HOME)
    with pytest.raises(BadSettings, match="not sent there"):
        resolve_login(environment=environment | {"LAMINAR_URL": "https://evil.example.org"})
    assert resolve_login(environment=environment | {"LAMINAR_URL": HOME.url}).key == KEY


def test_a_forgotten_login_is_gone(environment: dict[str, str]) -> None:
    path = config_file(environment)
    store_profile(path, "default", HOME)
    assert forget_profile(path, "default")
    assert KEY not in path.read_text()
    with pytest.raises(BadSettings, match="laminar login"):
        resolve_login(environment=environment)


@pytest.mark.parametrize("text", ["profiles = 3", "[profiles.default]\nurl = 'https://a.example'", "= =", "\x00"])
def test_a_broken_file_is_told_and_not_quoted(environment: dict[str, str], text: str) -> None:
    path = config_file(environment)
    store_profile(path, "default", HOME)
    path.write_text(text + f"\n# {KEY}")
    with pytest.raises(BadSettings) as told:
        resolve_login(environment=environment)
    assert KEY not in str(told.value)


@pytest.mark.parametrize(
    "url", ["laminar.example.org", "ftp://a.example", "https://", "https://me:pw@a.example", "https://a.example/?x=1"]
)
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(BadSettings):
        checked_url(url)


def test_an_address_may_be_written_with_its_api_path() -> None:
    assert checked_url(" https://a.example/laminar/api/v1/ ") == "https://a.example/laminar"


def test_nothing_represents_the_key() -> None:
    with Laminar(HOME.url, KEY) as client:
        shown = [
            repr(HOME),
            repr(client),
            repr(client.jobs.carrier),
            repr(vars(client)),
            str(vars(client.jobs.carrier)),
        ]
    assert not [text for text in shown if KEY in text]
