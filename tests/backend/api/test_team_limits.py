"""A team's limits do not grow with its keys, users or sessions; unknown clients are limited by address."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from backend.accounts.keys import bearer
from backend.accounts.models import Project, User
from backend.accounts.services import create_api_key
from backend.api.limits import rate_limit
from backend.api.limits.places import Limits, NoPlaceForTeam, Places
from backend.api.limits.rate_limit import Rate
from backend.api.problems import Unavailable
from backend.borders.proxies import neighbourhood
from backend.jobs.models import Job
from backend.pools.models import ResourcePool
from backend.telemetry.live import consumers
from tests.backend.browser_sockets import Watcher
from tests.backend.conftest import Api
from tests.racing import race


def test_requests_are_limited_per_team_across_keys(
    api: Api, api_of: Any, bob: User, charlie: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "REQUESTS", Rate(name="team", limit=3, window_s=3_600))
    keys = [api, api_of(bob), api, api_of(bob)]
    assert [each.get("/me").status_code for each in keys] == [200, 200, 200, 429]
    assert api_of(charlie).get("/me").status_code == 200, "another team is not limited"


def test_key_guessing_is_limited_by_address(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer, "UNKNOWN_KEYS", Rate(name="unknown-key", limit=3, window_s=3_600))

    def guess(n: int, address: str = "198.51.100.7") -> int:
        response = Api(f"lam_live_{n}").client.get(
            "/api/v1/me", headers={"Authorization": f"Bearer lam_live_{n}"}, REMOTE_ADDR=address
        )
        return int(response.status_code)

    assert [guess(n) for n in range(5)] == [401, 401, 401, 429, 429]
    assert guess(9, "198.51.100.8") == 401
    good = api.client.get("/api/v1/me", headers={"Authorization": f"Bearer {api.key}"}, REMOTE_ADDR="198.51.100.7")
    assert good.status_code == 200, "a valid key is not limited by guesses from its network"


def test_a_network_of_addresses_is_one_stranger() -> None:
    assert neighbourhood("2001:db8:1:2:aaaa::1") == neighbourhood("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert neighbourhood("2001:db8:1:3::1") != neighbourhood("2001:db8:1:2::1")
    assert [neighbourhood(each) for each in ("198.51.100.7", "", "unix:")] == ["198.51.100.7", "unknown", "unix:"]


def test_of_many_at_once_as_many_get_a_place_as_there_are() -> None:
    places = Places(lambda: Limits(of_a_team=10, of_a_process=15))

    def take(team: str) -> bool:
        try:
            places.take([team])
        except (NoPlaceForTeam, Unavailable):
            return False
        return True

    assert sum(race(*(partial(take, team) for team in ("ants", "bees") * 32))) == 15


def test_a_place_is_given_back_once() -> None:
    places = Places(lambda: Limits(of_a_team=2, of_a_process=9))
    first, _ = places.take(["ants", "bees"]), places.take(["ants"])
    for teams in (["ants"], ["bees", "ants"]):
        with pytest.raises(NoPlaceForTeam):
            places.take(teams)
    first()
    first()
    places.take(["ants"])
    with pytest.raises(NoPlaceForTeam):
        places.take(["ants"])


@pytest.mark.django_db(transaction=True)
def test_sockets_are_limited_per_team(
    watch: Callable[..., Watcher], alice: User, bob: User, charlie: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MOST_OF_A_TEAM", 2)
    watch(alice), watch(bob)
    with pytest.raises(InvalidStatus):
        watch(alice)
    watch(charlie)


@pytest.mark.django_db(transaction=True)
def test_lookups_are_limited_per_team(
    watch: Callable[..., Watcher], alice: User, bob: User, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limit, "LOOK_UPS", Rate(name="look-up", limit=3, window_s=3_600))
    hers, his = watch(alice), watch(bob)
    for watcher in (hers, his, hers):
        watcher.say({"watch": "job_" + "0" * 20})
        watcher.hear_until(lambda frame: frame.get("error") == "not_found")
    his.say({"watch": job.pk})
    assert his.closed_with()[0] == consumers.CLOSE_TRY_LATER


@pytest.mark.django_db(transaction=True)
def test_a_socket_answers_an_id_that_is_none(watch: Callable[..., Watcher], alice: User) -> None:
    watcher = watch(alice)
    for hostile in ("a\x00b", "\ud800", "x" * 500, "", "../x"):
        watcher.say({"watch": hostile})
        watcher.hear_until(lambda frame: frame.get("error") == "not_found")


def test_replay_needs_access_to_the_project(api: Api, project: Project, pool: ResourcePool, alice: User) -> None:
    other = Project.objects.create(team=project.team, name="Second steps")
    limited = Api(
        create_api_key(team=project.team, created_by=alice, name="limited", scopes=["jobs:write"], project=project)[1]
    )
    body = {"project": other.pk, "spec": {"name": "Sums"}}
    assert api.post("/jobs", body, key="k").status_code == 202
    answer = limited.post("/jobs", body, key="k")
    assert answer.status_code == 403 and b"Sums" not in answer.content
    own = body | {"project": project.pk}
    first, again = limited.post("/jobs", own, key="k"), limited.post("/jobs", own, key="k")
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (202, 202, "true")
    assert first.json() == again.json() and Job.objects.count() == 2
