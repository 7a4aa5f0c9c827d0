"""The pages as a client without scripts sees them: who may see what, errors beside fields, nothing that runs."""

import hashlib
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from django.test import Client
from django.urls import resolve

from backend.api.rate_limit import Rate
from backend.jobs.models import Job, JobState
from backend.pages.forms import JobForm
from backend.pages.job_rows import rows_of
from backend.pages.snapshot import MAX_POINTS, snapshot_of
from backend.pages.spec_fields import spec_fields
from backend.pages.templatetags import laminar
from backend.pages.timeline import timeline_of
from backend.telemetry.models import MetricPoint, MetricSeries
from engine.spec.job import JobSpec
from tests.frontend import seed
from tests.frontend.seed import World

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
HOSTILE = "<script>alert(1)</script></script><!-- ${7*7} {{7*7}} ‮مرحبا " + "w" * 60
TOKEN = "t" * 32
Answer = Any  # the test client's own response type has no public name


def text_of(response: Answer) -> str:
    return str(response.content, "utf-8")


def send(client: Client, form: dict[str, str]) -> Answer:
    """As a browser sends it."""
    return client.post("/jobs/new", urlencode(form), content_type="application/x-www-form-urlencoded")


def filled(world: World, **changes: str) -> dict[str, str]:
    """The form as the page shows it, with some fields typed over."""
    shown = JobForm.showing(JobSpec(name="Sums")).texts
    place = f"{world.project.pk}/{world.pool.pk}"
    return {**shown, "place": place, "token": TOKEN} | {key.replace("__", "."): value for key, value in changes.items()}


# ── who may see what ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/new", "/jobs/{job}/", "/jobs/{job}/cancel"])
def test_strangers_are_sent_to_sign_in(world: World, path: str) -> None:
    path = path.format(job=seed.submitted(world).pk)
    response = Client().get(path)
    assert response.status_code == 302
    assert response["Location"] == f"/accounts/login/?next={path}"


def test_the_pull_tells_a_stranger_in_a_way_that_a_script_understands(world: World) -> None:
    response = Client().get(f"/jobs/{seed.submitted(world).pk}/live")
    assert (response.status_code, response["Content-Type"]) == (401, "application/json")


@pytest.mark.parametrize("path", ["", "cancel", "live"])
def test_another_teams_job_does_not_exist(world: World, outsider: Client, path: str) -> None:
    job = seed.submitted(world)
    answers = [outsider.get(f"/jobs/{pk}/{path}") for pk in (job.pk, "job_00000000000000000000", "x' or 1", "%00")]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert outsider.post(f"/jobs/{job.pk}/cancel").status_code == 404
    assert job.name not in text_of(outsider.get("/jobs/"))
    assert Job.objects.get().state == JobState.QUEUED


def test_a_viewer_looks_and_touches_nothing(world: World, viewer: Client) -> None:
    job = seed.submitted(world)
    page = text_of(viewer.get(f"/jobs/{job.pk}/"))
    assert job.name in page
    assert "Cancel job" not in page
    assert "New job" not in text_of(viewer.get("/jobs/"))
    assert viewer.get("/jobs/new").status_code == 403
    assert send(viewer, filled(world)).status_code == 403
    assert viewer.post(f"/jobs/{job.pk}/cancel").status_code == 403
    assert Job.objects.get().state == JobState.QUEUED


def test_nobody_signs_up(world: World) -> None:
    assert "by invitation" in text_of(Client().get("/accounts/signup/"))


def test_signing_in_and_out(world: World) -> None:
    seed.may_sign_in(world.owner)
    client = Client()
    wrong = client.post("/accounts/login/", {"login": world.owner.email, "password": "wrong"})
    assert 'role="alert"' in text_of(wrong)
    assert f'value="{world.owner.email}"' in text_of(wrong)
    right = client.post("/accounts/login/?next=/jobs/new", {"login": world.owner.email, "password": seed.PASSWORD})
    assert right.status_code == 302
    assert client.get("/jobs/").status_code == 200
    assert client.get("/accounts/password/change/").status_code == 200
    client.post("/accounts/logout/")
    assert client.get("/jobs/").status_code == 302


def test_a_forged_post_is_refused_in_words(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.owner)
    response = send(client, filled(world))
    assert response.status_code == 403
    assert "Please send it again" in text_of(response)
    assert not Job.objects.exists()


# ── new job ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_form_submits_what_it_shows(world: World, owner: Client) -> None:
    response = send(owner, filled(world, name="A name", training__steps="60", schedule__name="sync"))
    job = Job.objects.get()
    assert response["Location"] == f"/jobs/{job.pk}/"
    assert job.spec == JobSpec.model_validate(
        {"name": "A name", "training": {"steps": 60}, "schedule": {"name": "sync"}}
    ).model_dump(mode="json")
    assert (job.created_by, job.team, job.project) == (world.owner, world.team, world.project)


def test_the_same_form_sent_twice_makes_one_job(world: World, owner: Client) -> None:
    first, second = send(owner, filled(world)), send(owner, filled(world))
    assert first["Location"] == second["Location"] == f"/jobs/{Job.objects.get().pk}/"


def test_a_used_form_that_was_changed_says_so_and_works_when_sent_again(world: World, owner: Client) -> None:
    send(owner, filled(world))
    again = send(owner, filled(world, name="Another"))
    assert "already made a job" in text_of(again)
    token = re.search(r'name="token" value="([^"]+)"', text_of(again))
    assert token
    assert send(owner, filled(world, name="Another", token=token[1])).status_code == 302
    assert Job.objects.count() == 2


WRONG = {
    "name": ("", "Must not be empty."),
    "training__steps": ("many", "Must be a whole number; got many."),
    "training__prompts_per_step": ("0", "Must be at least 1; got 0."),
    "optimizer__learning_rate": ("7", "Must be at most 1; got 7."),
    "rollout__replicas": ("1.5", "Must be a whole number; got 1.5."),
    "schedule__name": (
        "turbulent",
        "Must be one of 'laminar', 'sync', 'one_step', 'stream', 'partial' or 'bounded'; got turbulent.",
    ),
    "rollout__temperature": ("NaN", "Must be a number; got NaN."),
    "environment__params": ("No Equals", "Must be lower-case letters, digits and _, a letter first; got No Equals."),
    "tags": ("a, a", "Tags must not repeat."),
}


def test_who_submits_too_often_is_asked_to_wait_and_loses_nothing(
    world: World, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.pages.submit_views.SUBMITS", Rate(name="one-a-minute", limit=1, window_s=60))
    assert send(owner, filled(world, name="First")).status_code == 302
    refused = send(owner, filled(world, name="Second", token="another-token-of-this-form"))
    assert refused.status_code == 429
    assert "Please wait" in text_of(refused)
    assert "Second" in text_of(refused)


def test_every_error_is_beside_its_field_all_at_once_and_nothing_typed_is_lost(world: World, owner: Client) -> None:
    response = send(owner, filled(world, **{key: typed for key, (typed, _) in WRONG.items()}))
    page = unescape(text_of(response))
    assert response.status_code == 422
    assert f"{len(WRONG)} things are not right yet" in page
    for key, (typed, message) in WRONG.items():
        place = "f-" + key.replace("__", "-")
        assert re.search(rf'id="{place}-error">.*?{re.escape(message)}', page), key
        assert f'<a href="#{place}">' in page
        assert typed in page
    assert page.count('aria-invalid="true"') == len(WRONG)
    assert '<details class="more" open>' in page
    assert not Job.objects.exists()


def test_what_does_not_fit_together_is_told_beside_the_field_that_it_names(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, evaluation__every="500")))
    assert re.search(r'id="f-evaluation-every-error">.*must not exceed training.steps', page)


def test_a_stand_in_for_a_wrong_field_is_never_blamed(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, evaluation__every="500", training__steps="many")))
    assert "One thing is not right yet" in page


def test_a_job_that_never_fits_is_refused_beside_the_replicas(world: World, owner: Client) -> None:
    page = text_of(send(owner, filled(world, rollout__replicas="2000")))
    assert re.search(r'id="f-rollout-replicas-error">.*2001 devices', page)


@pytest.mark.parametrize("place", ["", "x/y", "proj_0/pool_0"])
def test_a_place_that_is_not_ones_own_is_refused(world: World, owner: Client, place: str) -> None:
    response = send(owner, filled(world, place=place))
    assert response.status_code == 422
    assert not Job.objects.exists()


@pytest.mark.parametrize("typed", ["\x00", "a\x00b", "‮", "𝕬" * 200, HOSTILE * 3])
def test_odd_names_are_refused_or_kept_but_never_break(world: World, owner: Client, typed: str) -> None:
    assert send(owner, filled(world, name=typed)).status_code in {302, 422}


def test_another_job_is_started_from_an_earlier_ones_spec(world: World, owner: Client, outsider: Client) -> None:
    job = seed.submitted(world, name="Earlier", environment={"params": {"median_terms": 9, "note": "12"}})
    page = unescape(text_of(owner.get(f"/jobs/new?from={job.pk}")))
    assert 'value="Earlier"' in page
    assert 'note = "12"\nmedian_terms = 9' in page
    assert "Earlier" not in text_of(outsider.get(f"/jobs/new?from={job.pk}"))


def test_every_setting_of_a_spec_survives_being_shown_and_sent() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "n",
            "tags": ["a", "b c"],
            "environment": {"params": {"a": True, "b": 1.5, "c": "true", "d": "x = y"}},
            "schedule": {"name": "sync", "max_staleness": 3},
            "optimizer": {"learning_rate": 1e-7},
        }
    )
    assert JobForm.typed(JobForm.showing(spec).texts).spec == spec


def test_every_field_says_what_it_is() -> None:
    assert not [each.path for each in spec_fields() if not each.description]


# ── one job ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_jobs_page_is_useful_without_scripts(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get(f"/jobs/{seed.finished(world, steps=56).pk}/")))
    numbers = (">56</span>", "0.27", "0.78", "+0.51")
    for expected in (*numbers, "succeeded", "Checkpoint saved", "reward/mean", "What the model writes"):
        assert expected in page
    assert page.count('<article class="sample"') == seed.SAMPLES_A_STEP + 1, "the newest step's, and the template"


def test_a_failed_job_says_what_to_do(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get(f"/jobs/{seed.failed(world).pk}/")))
    assert "Failed: config" in page
    assert "from 2 to max_terms (64), got 80.0" in page
    assert "Change the spec as the message says" in page


def test_a_failed_job_shows_what_its_parts_said_last(world: World, owner: Client) -> None:
    job = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=1))
    page = " ".join(unescape(text_of(owner.get(f"/jobs/{job.pk}/"))).split())
    assert "Failed: user code" in page and "Mend the environment's code" in page
    assert page.index("<figcaption>environment") < page.index("the grader raised for prompt 4183")
    assert page.index("<figcaption>trainer") < page.index("no batch for 60 s; giving up")
    assert "step 12" in page and "environment: it dies" in page and "fact 5" in page


def test_cancelling_without_scripts(world: World, owner: Client) -> None:
    job = seed.submitted(world)
    assert "This cannot be undone" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))
    page = text_of(owner.post(f"/jobs/{job.pk}/cancel", follow=True))
    assert "The job is cancelled." in page
    assert "nothing left to cancel" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))


def test_cancelling_what_has_ended_is_told_in_words(world: World, owner: Client) -> None:
    page = text_of(owner.post(f"/jobs/{seed.finished(world, steps=2).pk}/cancel", follow=True))
    assert "A job that has succeeded cannot be cancelled." in page


def test_the_pull_gives_what_is_new_and_only_that(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    cursor = owner.get(f"/jobs/{job.pk}/live?after=0").json()["cursor"]
    seed.trained(world, job, 6, reward=0.5)
    news = owner.get(f"/jobs/{job.pk}/live?after={cursor}").json()
    assert news["series"]["reward/mean"] == [[6, 0.5]]
    assert {each["step"] for each in news["trajectories"]} == {6}
    assert news["job"]["step"] == 6
    assert owner.get(f"/jobs/{job.pk}/live?after={news['cursor']}").json()["series"] == {}


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 30, "٣", ""])
def test_a_malformed_cursor_is_refused(world: World, owner: Client, after: str) -> None:
    assert owner.get(f"/jobs/{seed.submitted(world).pk}/live", {"after": after}).status_code == 422


def test_the_first_load_is_small_and_keeps_the_spikes(world: World) -> None:
    job = seed.running(world, steps_done=1)
    series = MetricSeries.objects.get(job=job, name="reward/mean")
    MetricPoint.objects.bulk_create(
        MetricPoint(
            series=series, attempt=1, step=step, at=datetime.now(UTC), value=9.0 if step == 2_345 else 0.5, cursor=1
        )
        for step in range(2, 5_001)
    )
    MetricPoint.objects.create(series=series, attempt=2, step=4_000, at=datetime.now(UTC), value=-3.0, cursor=2)
    points = dict(snapshot_of(job).series["reward/mean"])
    assert len(points) <= MAX_POINTS
    assert points[2_345] == 9.0
    assert points[4_000] == -3.0, "the later attempt's"


def test_the_timeline_is_end_to_end_and_holds_its_marks(world: World) -> None:
    job = seed.finished(world, steps=56)
    line = timeline_of(list(job.events.order_by("seq")), now=datetime.now(UTC))
    assert [each.state for each in line.stretches] == ["queued", "starting", "running", "stopping", "succeeded"]
    assert sum(each.width for each in line.drawn) == pytest.approx(100)
    for one, next_one in zip(line.drawn, line.drawn[1:], strict=False):
        assert one.x + one.width == pytest.approx(next_one.x)
        assert one.since + one.lasted == next_one.since
    assert {mark.kind for mark in line.marks} == {"fault", "checkpoint", "evaluation"}


def test_what_the_curl_buttons_copy_are_real_addresses(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=2)
    pages = text_of(owner.get(f"/jobs/{job.pk}/")) + text_of(owner.get("/jobs/")) + text_of(owner.get("/help/"))
    copied = re.findall(r"https?://[^\s'&\\<]+/api/v1[^\s'&\\<\"?]*", unescape(pages))
    assert len(copied) > 10
    for address in set(copied):
        resolve(urlsplit(address).path)


# ── the list ──────────────────────────────────────────────────────────────────────────────────────────────────────


def names_listed(client: Client, query: str) -> list[str]:
    return re.findall(r'dir="auto">(Alpha|Beta|Gamma)</a>', text_of(client.get(f"/jobs/?{query}")))


def test_the_list_filters_searches_and_counts(world: World, owner: Client) -> None:
    seed.submitted(world, name="Alpha", tags=["sweep"])
    seed.cancelled(world, name="Beta", tags=["sweep"])
    seed.cancelled(world, name="Gamma", tags=["other"])
    assert "all <b>3</b>" in (page := text_of(owner.get("/jobs/")))
    assert "cancelled <b>2</b>" in page
    assert names_listed(owner, "") == ["Gamma", "Beta", "Alpha"]
    assert names_listed(owner, "state=cancelled") == ["Gamma", "Beta"]
    assert names_listed(owner, "state=active") == ["Alpha"]
    assert names_listed(owner, "q=sweep") == ["Beta", "Alpha"]
    assert names_listed(owner, "q=alph") == ["Alpha"]
    assert names_listed(owner, "q=sweep&state=cancelled") == ["Beta"]
    assert owner.get("/jobs/?q=%00%ff&state=nonsense&page=-3").status_code == 200


def test_the_list_has_pages(world: World, owner: Client) -> None:
    for n in range(26):
        seed.submitted(world, name=f"Job {n:02}")
    assert "Job 25" in (first := text_of(owner.get("/jobs/")))
    assert "Page 1 of 2" in first
    assert "Job 00" in text_of(owner.get("/jobs/?page=2"))


def test_an_empty_list_invites_to_the_demo(world: World, owner: Client, viewer: Client) -> None:
    assert "Try the demo" in text_of(owner.get("/jobs/"))
    assert "Try the demo" not in text_of(viewer.get("/jobs/"))


def test_a_row_shows_reward_now_and_its_change(world: World) -> None:
    job = seed.running(world, steps_done=1)
    seed.trained(world, job, 2, reward=0.9)
    job.refresh_from_db()
    [row] = rows_of([job], now=datetime.now(UTC))
    assert row.reward == 0.9
    assert row.change == pytest.approx(0.9 - row.rewards[0])


# ── nothing runs that we did not write ────────────────────────────────────────────────────────────────────────────


class Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if (
            tag == "script"
            and not (given.get("src") or "").startswith("/static/")
            and given.get("type") != "application/json"
        ):
            self.faults.append("a script that is not ours")
        if tag in {"iframe", "object", "embed", "base"} or (tag == "style"):
            self.faults.append(f"<{tag}>")
        self.faults += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if "id" in given:
            self.ids.append(str(given["id"]))


PAGES = ["/jobs/", "/jobs/new", "/help/", "/nothing/here"]
PAGES += [f"/accounts/{page}/" for page in ("login", "logout", "password/change", "signup")]


def all_pages(world: World, client: Client) -> dict[str, Answer]:
    job = seed.running(world, steps_done=3, name=HOSTILE[:120], tags=["<b>x</b>"])
    job.trajectories.update(response=HOSTILE, prompt="</script><img src=x onerror=alert(1)>", remark=HOSTILE)
    failed = seed.failed(world, name="'\"><svg onload=alert(1)>", message="</pre>" + HOSTILE)
    paths = [*PAGES, f"/jobs/{job.pk}/", f"/jobs/{job.pk}/cancel", f"/jobs/{failed.pk}/", f"/jobs/new?from={failed.pk}"]
    answers = {path: client.get(path, follow=False) for path in paths}
    wrong = filled(world, name=HOSTILE * 2, tags="<b>,<b>", training__steps="<script>")
    return answers | {"form": send(client, wrong), "search": client.get("/jobs/", {"q": "<script>alert(1)"})}


def test_no_page_holds_a_script_or_a_handler_that_is_not_ours(world: World, owner: Client) -> None:
    for path, response in all_pages(world, owner).items():
        markup = Markup()
        markup.feed(text_of(response))
        assert not markup.faults, (path, markup.faults)
        assert len(markup.ids) == len(set(markup.ids)), path
        assert "<script>alert" not in text_of(response), path
        assert "<svg onload" not in text_of(response), path


def test_every_answer_carries_the_policy(world: World, owner: Client) -> None:
    for path, response in all_pages(world, owner).items():
        policy = dict(part.split(" ", 1) for part in response["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'", path
        assert policy["script-src"] == "'self'", path
        assert policy["frame-ancestors"] == "'none'", path
        assert "unsafe" not in policy["style-src"], path


def test_wrong_turns_are_told_in_our_own_words(world: World, owner: Client, viewer: Client) -> None:
    assert "Nothing flows here" in text_of(owner.get("/nothing/here"))
    assert "may look at jobs" in text_of(viewer.get("/jobs/new"))


def test_an_error_of_ours_is_a_calm_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("backend.pages.views.rows_of", broken)
    client = Client(raise_request_exception=False)
    client.force_login(world.owner)
    response = client.get("/jobs/")
    assert response.status_code == 500
    assert "Turbulence on our side" in text_of(response)
    assert "secret" not in text_of(response)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_vendored_is_what_the_list_says() -> None:
    listed = (FRONTEND / "static/vendor/VENDORED.md").read_text()
    for bundle in (FRONTEND / "static/vendor").rglob("*.js"):
        assert hashlib.sha256(bundle.read_bytes()).hexdigest() in listed, bundle.name
    assert (FRONTEND / "static/vendor/plotly/LICENSE").is_file()


def test_text_is_readable_on_what_it_stands_on() -> None:
    """WCAG AA: 4.5 to 1, in light and in dark."""
    tokens = dict(
        re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", (FRONTEND / "static/css/tokens.css").read_text())
    )
    pairs = [
        (text, ground) for text in ("ink", "ink-2", "ink-3", "stream", "bad") for ground in ("paper", "surface", "sunk")
    ]
    pairs += [("ink-2", "stream-soft"), ("stream-strong", "stream-soft"), ("on-stream", "stream")]
    pairs += [(tone, f"{tone}-soft") for tone in ("good", "warn", "bad", "calm", "violet", "ember")]
    for theme in (0, 1):
        colours = {name: both.split(", ")[theme] for name, both in tokens.items()}
        poor = [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5]
        assert not poor, f"{('light', 'dark')[theme]}: {poor}"
        assert contrast("#ffffff", colours["bad-solid"]) >= 4.5
        assert contrast(colours["line-strong"], colours["surface"]) >= 3, "the edge of a field"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_our_modules_are_small() -> None:
    lengths = {path.name: path.read_text().count("\n") for path in (FRONTEND / "static/js").rglob("*.js")}
    assert max(lengths.values()) <= 100, lengths


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser tests cover the rest")
def test_numbers_look_the_same_from_the_server_and_in_the_browser() -> None:
    values = [0, 1, -1, 0.5, -0.0312, 0.00012, 0.1, 9.999, 12.345, 99.96, 100, 843.2, 12_345, 1e8, 0.76, 120]
    seconds = [0, 59.4, 60, 185, 3_600, 7_799, 90_000]
    module = (FRONTEND / "static/js/lib/format.js").as_uri()
    script = (
        f"import * as f from '{module}';"
        f"const v={json.dumps(values)}, s={json.dumps(seconds)};"
        "console.log(JSON.stringify([v.map(f.number), v.map(f.reward), v.map(f.change), s.map(f.span)]))"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        [laminar.number(value) for value in values],
        [laminar.reward(value) for value in values],
        [laminar.change(value) for value in values],
        [laminar.span(value) for value in seconds],
    ]


def test_ages_are_told_in_the_largest_unit() -> None:
    now = datetime.now(UTC)
    told = [laminar.ago(now - timedelta(seconds=s), now) for s in (1, 30, 90, 7_300, 200_000)]
    assert told == ["just now", "30 s ago", "1 min ago", "2 h ago", "2 d ago"]
