"""The trajectories pages: a step by questions, and a trajectory by messages and tokens, each with a URL."""

import re
from html import unescape
from typing import Any

from django.test import Client

from backend.jobs.models import Job
from backend.telemetry.models import Removal, RemovedKind, Trajectory, UnarchivedTrajectory
from engine.spec.facts import TrajectorySample
from tests.frontend import seed
from tests.frontend.html_reading import text_of, words_of
from tests.frontend.seed import World
from tests.frontend.seed_samples import GROUP_SIZE

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
ENDS = {
    "filtered": "Filtered out.",
    "dropped_stale": "Dropped as stale.",
    "failed": "Failed.",
}


def sample(ordinal: int = 9_000, index: int = 0, **changes: Any) -> TrajectorySample:
    told: dict[str, Any] = {"prompt_ordinal": ordinal, "sample": index, "version": 1, "staleness": 0, "num_tokens": 3}
    told |= {"reward": 1.0, "advantage": 0.5, "prompt": "why?", "response": "because it is so"}
    return TrajectorySample.model_validate(told | changes)


def address_of(row: Trajectory) -> str:
    return f"/jobs/{row.job_id}/trajectories/{row.trajectory_id}"


def refusal_text(job: Job, **changes: Any) -> Trajectory:
    """One sample in addition to those of step 1."""
    seed.sampled(job, 1, [sample(**changes)])
    return job.trajectories.latest("pk")


def test_a_step_is_read_by_its_questions_with_whole_groups_first(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=2)
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/"))
    groups = re.findall(r'<article class="group".*?</article>', page, re.S)
    assert [each.count('<details class="sample"') for each in groups] == [GROUP_SIZE, GROUP_SIZE, 1, 1, 1]
    assert all(f"all {GROUP_SIZE} samples, mean reward" in each for each in groups[:2])
    assert all(f"1 of {GROUP_SIZE} samples" in each for each in groups[2:])
    assert "11 samples of 5 questions, 2 of them with all samples" in " ".join(page.split())
    for title in ("filtered out", "dropped as stale", "failed", "timed out", "no reward"):
        assert title in page
    rewards = [float(each) for each in re.findall(r'aria-label="Sample \d: reward ([\d.]+),', groups[0])]
    assert rewards == sorted(rewards, reverse=True) and len(rewards) == GROUP_SIZE


def test_a_trajectory_is_read_at_an_address_of_its_own(world: World, owner: Client, outsider: Client) -> None:
    job = seed.running(world, steps_done=2)
    row = job.trajectories.filter(num_turns=5).latest("step", "pk")
    page = words_of(owner.get(address_of(row)))
    whole = page[page.index('class="turns"') :]
    headings = re.findall(r'<p class="turn-head"><b dir="auto">([^<]+)</b> <span>(\d) of 5', whole)
    said = ["Model, calling add", "Answer of add", "Model, calling add", "Answer of add", "Model"]
    assert headings == [(heading, str(at)) for at, heading in enumerate(said, start=1)]
    assert '{"terms": "all of them"}' in whole and "340 ms" in whole
    assert re.search(r"<b>Error</b> <span[^>]*>terms: a list of numbers, got a text", whole)
    assert re.search(r'<th scope="row"[^>]*>brief</th>', page), "the reward by its parts"
    assert f'href="/jobs/{job.pk}/trajectories/?step={row.step}#question-{row.prompt_ordinal}"' in page
    assert f'id="question-{row.prompt_ordinal}"' in text_of(owner.get(f"/jobs/{job.pk}/trajectories/?step={row.step}"))
    assert outsider.get(address_of(row)).status_code == 404
    other = seed.running(world, steps_done=1)
    assert owner.get(f"/jobs/{other.pk}/trajectories/{row.trajectory_id}").status_code == 404
    assert owner.get(f"/jobs/{job.pk}/trajectories/traj_1_2_3_9").status_code == 404


def test_samples_of_a_question_lead_to_one_another(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    first, second, third, last = job.trajectories.filter(num_turns=5).order_by("sample")
    page = text_of(owner.get(address_of(second) + "?colour=gap"))
    steps = dict(re.findall(r'<a class="button small" href="([^"?]+)\?colour=gap">(\w+) sample</a>', page))
    assert steps == {address_of(first): "Previous", address_of(third): "Next"}
    assert page.count('aria-current="page"') == 1
    assert 'aria-disabled="true">Next sample' in text_of(owner.get(address_of(last)))


def test_why_it_was_not_trained_stands_above_it(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    for row in job.trajectories.exclude(end="trained"):
        page = words_of(owner.get(address_of(row)))
        assert ENDS[row.end] in page and row.reason and row.reason in page
    doubted = refusal_text(job, outcome="untrusted", remark="the test file was changed")
    page = words_of(owner.get(address_of(doubted)))
    assert "Reward not trusted." in page and "the test file was changed" in page
    newer = refusal_text(job, ordinal=9_001, end="trained")
    Trajectory.objects.filter(pk=newer.pk).update(end="set_aside_for_later")
    assert "Set aside for later." in words_of(owner.get(address_of(newer))), "an end of a later engine"


def test_every_token_has_an_address_and_a_look_of_each_colouring(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    row = job.trajectories.filter(num_turns=5).first()
    assert row is not None
    for asked, colour in (
        ("", "likely"),
        ("?colour=gap", "gap"),
        ("?colour=version", "version"),
        ("?colour=x", "likely"),
    ):
        page = text_of(owner.get(address_of(row) + asked))
        assert f'data-colour="{colour}"' in page and 'style="' not in page
        assert re.findall(r'data-colouring="(\w+)" aria-current', page) == [colour]
        tokens = re.findall(r'<span id="token-(\d+)" class="([^"]*)">([^<]*)</span>', page)
        assert [int(at) for at, _, _ in tokens] == list(range(row.num_tokens))
        assert "".join(unescape(text) for _, _, text in tokens) == row.response
        assert all(looks == "env" or re.fullmatch(r"l\d a\d g\d v\d", looks) for _, looks, _ in tokens)
        assert {looks == "env" for _, looks, _ in tokens} == {True, False}


def test_thousands_of_tokens_make_a_small_page(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    num = 2_048
    trace: dict[str, Any] = {
        "token_ids": [7] * num,
        "logprobs": [-0.123456] * num,
        "versions": [3] * num,
        "written": [True] * num,
    }
    trace |= {"texts": [" token"] * num, "trainer_logprobs": [-0.12] * num}
    row = refusal_text(job, num_tokens=5_000, response=" token" * 5_000, trace=trace)
    answer = owner.get(address_of(row), headers={"Accept-Encoding": "gzip"})
    assert len(answer.content) < 40_000 if answer.has_header("Content-Encoding") else len(answer.content) < 400_000
    page = text_of(owner.get(address_of(row)))
    assert page.count('<span id="token-') == num and "Only the text of the last 2,952 tokens was stored" in page
    assert page.count(" token") >= 5_000, "the rest of the text stands behind the tokens"


def test_a_trajectory_of_before_reads_as_one_message(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    bare = words_of(owner.get(address_of(refusal_text(job))))
    assert "because it is so" in bare and bare.count('class="turn"') == 1 and "The tokens were not stored" in bare
    trace = {"token_ids": [1, 2], "logprobs": [-1, -1], "versions": [1, 1], "written": [True, True]}
    page = words_of(owner.get(address_of(refusal_text(job, ordinal=9_001, trace=trace))))
    assert "because it is so" in page and "Token texts are not available" in page and "trajectory.js" not in page


def test_what_is_kept_no_longer_is_shown_as_far_as_it_goes(world: World, owner: Client) -> None:
    job = seed.finished(world, steps=2)
    row = refusal_text(job)
    UnarchivedTrajectory.objects.filter(pk=row.pk).delete()
    page = words_of(owner.get(address_of(row)))
    assert "no longer stored" in page and "because it is so" in page
    assert "no longer stored" in words_of(owner.get(address_of(row) + "?part=turns"))
    Removal.objects.create(job=job, kind=RemovedKind.TRAJECTORIES, at=job.created_at)
    assert owner.get(address_of(row))["Location"] == f"/jobs/{job.pk}/trajectories/"


def test_an_opened_sample_brings_its_messages_alone(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    row = job.trajectories.filter(num_turns=5).first()
    assert row is not None
    listed = text_of(owner.get(f"/jobs/{job.pk}/trajectories/"))
    assert f'data-opens="{address_of(row)}?part=turns"' in listed
    part = text_of(owner.get(f"{address_of(row)}?part=turns"))
    assert part.count('class="turn"') == 5 and "<html" not in part and 'id="' not in part, "ids are the page's"


def test_whatever_a_model_or_a_tool_writes_is_text(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=1)
    turn: dict[str, Any] = {
        "author": "environment",
        "text": HOSTILE,
        "first_token": 0,
        "num_tokens": 1,
        "tool": HOSTILE[:60],
    }
    turn |= {"arguments": HOSTILE * 9, "error": HOSTILE}
    trace = {"token_ids": [1], "logprobs": [-1.0], "versions": [1], "written": [True], "texts": [HOSTILE]}
    texts = dict.fromkeys(("prompt", "response", "remark", "reason"), HOSTILE)
    row = refusal_text(job, **texts, end="filtered", turns=[turn], trace=trace, parts={HOSTILE[:40]: 1.0})
    for path in (address_of(row), f"{address_of(row)}?part=turns", f"/jobs/{job.pk}/trajectories/?step=1"):
        page = text_of(owner.get(path))
        assert HOSTILE not in page and "<img" not in page and page.count("&lt;script&gt;alert(1)") >= 3, path
