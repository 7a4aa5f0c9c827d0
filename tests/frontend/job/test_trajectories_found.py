"""Trajectory search by filters and words, with matching passages; and the outcomes of all samples of a run."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils.http import urlencode

from backend.jobs.models import Job
from backend.pages.trajectories.ledger import whereabouts_of
from backend.pages.trajectories.sought import Sought
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.models import Removal, RemovedKind, SampleLedger
from engine.spec.control import FactBatch
from tests.frontend import seed
from tests.frontend.html_reading import text_of, words_of
from tests.frontend.job.test_trajectories import sample
from tests.frontend.seed import World


def found(client: Client, job: Job, **asked: Any) -> list[str]:
    """The ids of the results, in order."""
    page = text_of(client.get(f"/jobs/{job.pk}/trajectories/", asked))
    results = re.findall(r'<div class="found">.*?</ol>', page, re.S)
    assert results, "a list of what was found"
    return re.findall(r'href="/jobs/\w+/trajectories/(traj_\w+)', results[0])


def test_filters_narrow_to_what_they_say(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=3)
    for asked, wanted in (
        ({"end": "dropped_stale"}, {"end": "dropped_stale"}),
        ({"outcome": "timeout"}, {"outcome": "timeout"}),
        ({"min_reward": "0.5"}, {"reward__gte": 0.5}),
        ({"max_reward": "0.5", "end": "trained"}, {"reward__lte": 0.5, "end": "trained"}),
        ({"version": "1"}, {"version": 1}),
        ({"min_staleness": "5"}, {"staleness__gte": 5}),
        ({"step": "2", "end": "failed"}, {"step": 2, "end": "failed"}),
    ):
        rows = job.trajectories.filter(**wanted).order_by("-step", "-pk")[:20]
        assert found(owner, job, **asked) == [row.trajectory_id for row in rows], asked


def test_more_than_a_page_is_read_on_and_nothing_twice(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=4)
    address, seen = f"/jobs/{job.pk}/trajectories/?end=trained&min_reward=-5", list[str]()
    while address:
        page = text_of(owner.get(address))
        seen += re.findall(r'href="/jobs/\w+/trajectories/(traj_\w+)', page)
        following = re.findall(r'<a class="button" href="(\?[^"]+)">Next page</a>', page)
        address = f"/jobs/{job.pk}/trajectories/{following[0].replace('&amp;', '&')}" if following else ""
    assert len(seen) == len(set(seen)) == job.trajectories.filter(end="trained").count() > 20


def test_what_was_asked_stands_in_the_form_again(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    asked = {"q": "sums", "end": "failed", "outcome": "timeout", "min_reward": "-0.5", "version": "3", "step": "1"}
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/", asked))
    assert 'name="q" value="sums"' in page and 'name="min_reward" value="-0.5"' in page
    assert 'value="failed" selected' in page and 'value="timeout" selected' in page
    assert 'name="version" value="3"' in page and 'name="step" value="1"' in page
    assert "data-follow" not in page, "what was searched for stays"
    assert f"trajectories?{urlencode(asked)}".replace("&", "&amp;") in page, "the same by the API"


def test_a_word_is_found_in_any_message_and_its_place_is_told(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    turns = [
        {"author": "model", "text": "let me look", "first_token": 0, "num_tokens": 3},
        {"author": "environment", "text": "the lighthouse is dark", "first_token": 3, "num_tokens": 4},
    ]
    seed.sampled(job, 1, [sample(turns=turns, response="let me lookthe lighthouse is dark")])
    seed.sampled(job, 1, [sample(9_001, prompt="where is the lighthouse?")])
    page = words_of(owner.get(f"/jobs/{job.pk}/trajectories/", {"q": "LIGHTHOUSE"}))
    assert "in message 2:" in page and "in the question:" in page and page.count("<mark>lighthouse</mark>") == 2
    [in_turn] = re.findall(r'href="([^"]+)#turn-2"', page)
    whole = words_of(owner.get(in_turn.replace("&amp;", "&")))
    assert '<a href="#turn-2">in message 2</a>' in whole and "the <mark>lighthouse</mark> is dark" in whole
    assert "No stored trajectories match." in words_of(
        owner.get(f"/jobs/{job.pk}/trajectories/", {"q": "lighthouse", "end": "failed"})
    )


def test_tokens_in_which_a_word_stands_are_marked(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    row = job.trajectories.filter(num_turns=5).first()
    assert row is not None
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/{row.trajectory_id}", {"q": '"list of numbers"'}))
    hits = re.findall(r'<span id="(token-\d+)" class="env hit">([^<]+)</span>', page)
    assert "".join(text for _, text in hits).strip() == "list of numbers"
    assert f'<a href="#{hits[0][0]}">in message 2</a>' in page
    nowhere = words_of(owner.get(f"/jobs/{job.pk}/trajectories/{row.trajectory_id}", {"q": "lighthouse"}))
    assert "was not found in this trajectory" in nowhere


@pytest.mark.parametrize("asked", [{"q": "-"}, {"q": "'"}, {"q": "a", "from": "x"}, {"q": "<script>alert(1)</script>"}])
def test_what_cannot_be_looked_for_is_told_calmly(world: World, owner: Client, asked: dict[str, str]) -> None:
    job = seed.running(world, steps_done=1)
    answer = owner.get(f"/jobs/{job.pk}/trajectories/", asked)
    assert answer.status_code == 200 and "<script>alert" not in text_of(answer)
    assert '<div class="found">' in text_of(answer)


def test_of_what_was_removed_nothing_is_found(world: World, owner: Client) -> None:
    job = seed.finished(world, steps=2)
    Removal.objects.create(job=job, kind=RemovedKind.TRAJECTORIES, at=datetime(2026, 3, 4, tzinfo=UTC))
    page = words_of(owner.get(f"/jobs/{job.pk}/trajectories/", {"end": "trained"}))
    assert "The trajectories of this job were removed on 2026-03-04" in page and "<article" not in page


def test_the_pieces_of_a_text_are_the_text() -> None:
    sought = Sought.of('the "old man" sea*')
    text = "The old man, the Old Man and the seas; an old woman."
    pieces = sought.pieces(text)
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, is_hit in pieces if is_hit] == ["The", "old man", "the", "Old Man", "the", "seas"]
    assert Sought.of("").pieces(text) == [(text, False)] and Sought.of("").pieces("") == []


LEDGER = {
    "trained": 640,
    "filtered": 200,
    "dropped_stale": 96,
    "failed": 0,
    "open": 64,
    "rolled_back": 32,
    "replaced": 5,
}


def test_where_all_went_adds_up_to_all_that_were_asked() -> None:
    went = whereabouts_of(LEDGER | {"of_a_later_engine": 24}, step=7)
    assert went is not None and went.num_samples == 1_024
    assert [(meaning.word, num) for meaning, num in went.requested_again] == [("replaced", 5), ("rolled_back", 32)]
    assert [(each.meaning.word, each.num_samples) for each in went.ends] == [
        ("trained", 640), ("filtered", 200), ("dropped_stale", 96), ("failed", 0), ("open", 64),
        ("of_a_later_engine", 24),
    ]  # fmt: skip
    assert sum(each.share for each in went.ends) == pytest.approx(1)
    assert whereabouts_of({}, step=None) is None


def tells(job: Job, seq: int, body: dict[str, Any]) -> None:
    attempt, at = job.attempts.get(), datetime.now(UTC)
    told = {"attempt": attempt.n, "fence": attempt.fence, "facts": [{"seq": seq, "at": at, "body": body}]}
    ingest_facts(attempt, FactBatch.model_validate(told), now=at)


def test_the_page_tells_where_all_went_in_the_ledgers_own_counts(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    address = f"/jobs/{job.pk}/trajectories/"
    assert "No counts yet" in words_of(owner.get(address))
    tells(job, 1, {"type": "step_trained", "step": 2, "metrics": {}, "ledger": LEDGER | {"open": 3_064}})
    assert "4,000 samples requested, as of step 2" in words_of(owner.get(address + "?part"))
    tells(job, 2, {"type": "run_finished", "outcome": "succeeded", "ledger": LEDGER})
    [table] = re.findall(r'<section class="card ledger".*?</section>', text_of(owner.get(address)), re.S)
    counts = re.findall(r'<th scope="row">(?:<a[^>]*>)?([^<]+)<.*?<td class="end">([\d,]+)</td>', table)
    assert dict(counts) == {
        "trained on": "640", "filtered out": "200", "dropped as stale": "96", "failed": "0", "in progress": "64",
        "failed, then replaced": "5", "trained on, then lost": "32",
    }  # fmt: skip
    assert "1,000 samples requested, as last reported" in table and "64 %" in table


def test_of_a_job_of_before_the_last_word_tells_it(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    tells(job, 1, {"type": "run_finished", "outcome": "succeeded", "ledger": LEDGER})
    SampleLedger.objects.filter(job=job).delete()
    assert "1,000 samples requested, as last reported" in words_of(owner.get(f"/jobs/{job.pk}/trajectories/"))
