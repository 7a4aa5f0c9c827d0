"""Search over trajectories: every turn is found, no other team's text, and no input breaks it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from django.db import connection

from backend.accounts.models import Project, User
from backend.accounts.services import create_api_key
from backend.errors import Invalid
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from backend.store.folder import FolderStore
from backend.telemetry.fulltext.finding import searching
from backend.telemetry.fulltext.searched_texts import MOST_OF_PROMPT, MOST_SEARCHED
from backend.telemetry.models import Trajectory, TrajectoryWords
from backend.telemetry.removal import remove_old_trajectories
from tests.backend.conftest import Api, MakeJob, MakeKey
from tests.backend.telemetry.test_trajectories import Writer, sample

TURNS: list[dict[str, Any]] = [
    {"author": "model", "text": "I ask the abacus", "first_token": 0, "num_tokens": 4, "tool": "abacus",
     "arguments": '{"beads": 41}'},
    {"author": "environment", "text": "forty-two", "first_token": 4, "num_tokens": 2, "error": "a bead fell off"},
]  # fmt: skip


@pytest.fixture
def writer(job: Job, now: datetime) -> Writer:
    return Writer(job, now)


@pytest.fixture
def found(job: Job, api: Api) -> Callable[..., list[Any]]:
    def search(q: str, **filters: Any) -> list[Any]:
        answer = api.get(f"/jobs/{job.pk}/trajectories", q=q, **filters)
        assert answer.status_code == 200, answer.content
        return answer.json()["data"]  # type: ignore[no-any-return]

    return search


@pytest.mark.parametrize(
    ("typed", "place", "turn", "match"),
    [
        ("QUESTION", "prompt", None, "question"),
        ("abacus", "text", 0, "abacus"),
        ("beads", "arguments", 0, "beads"),
        ('"a bead fell"', "error", 1, "a bead fell"),
        ("forty-two", "text", 1, "forty-two"),
        ("fort*", "text", 1, "forty"),
        ("doubted", "remark", None, "doubted"),
        ("filtered_out -elephant", "reason", None, "filtered_out"),
    ],
)
def test_match_in_every_turn_is_found_with_its_place(
    writer: Writer, found: Callable[..., list[Any]], typed: str, place: str, turn: int | None, match: str
) -> None:
    writer.write(1, sample(1, prompt="A question", turns=TURNS, remark="is doubted", reason="filtered_out"), sample(2))
    [row] = found(typed)
    passage = row["passage"]
    assert (row["prompt_ordinal"], passage["place"], passage["turn"], passage["match"]) == (1, place, turn, match)
    texts = {"prompt": "A question", "remark": "is doubted", "reason": "filtered_out"}
    text = texts[place] if turn is None else TURNS[turn][place]
    assert text[passage["start"] :].startswith(passage["match"])
    assert text == passage["before"] + passage["match"] + passage["after"]


def test_texts_that_do_not_match_are_not_found(writer: Writer, found: Callable[..., list[Any]]) -> None:
    writer.write(1, sample(1, prompt="A prompt question", turns=TURNS))
    for typed in (
        "question -forty-two",
        "question -aba*",
        "abacus elephant",
        "-abacus prompt",
        '"bead a"',
        "aba",
        '"question I"',
        "bacus",
    ):
        assert found(typed) == [], typed


def test_letters_of_every_script_form_words(writer: Writer, found: Callable[..., list[Any]]) -> None:
    writer.write(1, sample(1, response="Größe ΣΊΣΥΦΟΣ 数学は面白い \\boxed{42} x_1"))
    for typed in ("grösse", "σίσυφος", "数学", "面白", "\\boxed{42}", "X_1"):
        assert len(found(typed)) == 1, typed
    assert found("学数") == []


def test_results_are_newest_first_paged_and_filtered(
    writer: Writer, api: Api, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        writer.write(step, sample(1, version=step, staleness=step), sample(2, end="dropped_stale", staleness=9))
    path, all_of_them = f"/jobs/{job.pk}/trajectories", [(3, 2), (3, 1), (2, 2), (2, 1), (1, 2), (1, 1)]
    for few in (2_000, 3):  # by look-up, and by walking
        monkeypatch.setattr("backend.telemetry.fulltext.finding.FEW", few)
        first = api.get(path, q="prompt", limit=4).json()
        last = api.get(path, q="prompt", limit=4, cursor=first["next_cursor"]).json()
        found = [(row["step"], row["prompt_ordinal"]) for row in first["data"] + last["data"]]
        assert found == all_of_them and not last["has_more"]

    def steps(**asked: Any) -> list[tuple[int, int]]:
        return [(row["step"], row["prompt_ordinal"]) for row in api.get(path, **asked).json()["data"]]

    assert steps(q="prompt", end="dropped_stale") == steps(end="dropped_stale") == [(3, 2), (2, 2), (1, 2)]
    assert steps(version=2) == [(2, 1)] and steps(min_staleness=9, step=3) == [(3, 2)]
    assert steps(q='"prompt 1" -"prompt 2"') == [(3, 1), (2, 1), (1, 1)] and steps(q='-"prompt 1" prompt', step=1) == [
        (1, 2)
    ]
    assert steps(prompt_ordinal=1, min_staleness=2) == [(3, 1), (2, 1)]


def test_texts_of_other_teams_and_projects_are_not_found(
    writer: Writer, job: Job, make_job: MakeJob, api: Api, charlie: User, alice: User, make_key: MakeKey, now: datetime
) -> None:
    beside = make_job()
    Writer(beside, now).write(1, sample(3, prompt="an abacus again"))
    writer.write(1, sample(1, prompt=f"abacus of job:{beside.pk} team:{job.team_id}"))
    assert [row["job_id"] for row in api.get("/trajectories", q="abacus").json()["data"]] == [job.pk, beside.pk]
    assert len(api.get(f"/jobs/{job.pk}/trajectories", q="abacus").json()["data"]) == 1
    elsewhere = Project.objects.create(team=job.team, name="Elsewhere")
    for project, num in ((job.project_id, 2), (elsewhere.pk, 0)):
        assert len(api.get("/trajectories", q="abacus", project=project).json()["data"]) == num
    _, api.key = create_api_key(
        team=job.team, created_by=alice, name="e", scopes=["trajectories:read"], project=elsewhere
    )
    assert api.get("/trajectories", q="abacus").status_code == 403
    assert api.get("/trajectories", q="abacus", project=job.project_id).status_code == 403
    assert api.get("/trajectories", q="abacus", project=elsewhere.pk).json()["data"] == []
    api.key = make_key(charlie, scopes=("trajectories:read",))
    for typed in ("abacus", f"abacus team:{job.team_id}", f"'team:{job.team_id}' | abacus"):
        assert api.get("/trajectories", q=typed).json()["data"] == []
    assert api.get("/trajectories", q="abacus", project=job.project_id).json()["data"] == []


def test_words_of_removed_job_are_gone(
    writer: Writer, job: Job, api: Api, now: datetime, tmp_path: Any, make_job: MakeJob
) -> None:
    kept, keep = make_job(), timedelta(days=1)
    Writer(kept, now).write(1, sample(1))
    writer.write(1, sample(1))
    cancel_job(job.pk, actor="test", now=now)
    remove_old_trajectories(FolderStore(tmp_path), keep=keep, now=now + 2 * keep, limit=1)
    assert [row["job_id"] for row in api.get("/trajectories", q="prompt").json()["data"]] == [kept.pk]
    remove_old_trajectories(FolderStore(tmp_path), keep=keep, now=now + 2 * keep)
    assert list(TrajectoryWords.objects.values_list("job_id", flat=True)) == [kept.pk]


def test_empty_or_too_long_query_is_refused(job: Job, api: Api) -> None:
    without = ["", " ", "'", "\\", "& | !", "-only -unwanted", '""', '* - "', "<->", "🙂", "x " * 21]
    for path in (f"/jobs/{job.pk}/trajectories", "/trajectories"):
        for typed in [*without, "a\x00b", "x" * 201]:
            answer = api.get(path, q=typed)
            assert answer.status_code == 422, typed
            assert answer.json()["errors"][0]["pointer"] == "/query/q"


def test_only_words_of_a_query_reach_postgres(writer: Writer, found: Any) -> None:
    writer.write(1, sample(1, prompt="prompt x a 2 1 s select"))
    for typed in ("prompt' | 'x", "prompt\\' & !'x", "x:*A", "!prompt", "prompt & !x", "((prompt", "prompt <2> x",
                  "%prompt%", "$1 prompt", "prompt; SELECT", "%s prompt", "x:a"):  # fmt: skip
        assert len(found(typed)) == 1, typed


EVERY_LETTER = " ".join(chr(code) for code in range(0x20, 0x30000) if not 0xD800 <= code < 0xE000 and code != 0x7F)


HOSTILE: Final = {
    "first letters": EVERY_LETTER[:MOST_SEARCHED],
    "more letters": EVERY_LETTER[100_000:200_000],
    "one word of all": EVERY_LETTER.replace(" ", "")[:MOST_SEARCHED],
    "wide": " ".join("\U00020000" + chr(0x20001 + each) * 58 for each in range(1_600))[:MOST_SEARCHED],
    "grows when folded": " ".join("ΐ" * 57 + str(each) for each in range(1_700))[:MOST_SEARCHED],
    "quotes": "'" * MOST_SEARCHED,
    "slashes": "\\" * MOST_SEARCHED,
    "one word": "a " * (MOST_SEARCHED // 2),
}


def test_any_text_is_stored(writer: Writer) -> None:
    for number, text in enumerate(HOSTILE.values()):
        writer.write(1, sample(number, prompt=text, response=text))
    assert TrajectoryWords.objects.count() == len(HOSTILE)


def test_long_prompt_leaves_room_for_the_response(writer: Writer, found: Any) -> None:
    long = "word " * (MOST_OF_PROMPT // 5)
    writer.write(1, sample(1, prompt=long + "behind", response="x " * 30_000 + "needle" + " y" * 15_000 + " lost"))
    assert [len(found(typed)) for typed in ("word", "needle", "lost", "behind")] == [1, 1, 0, 0]
    assert found("needle")[0]["passage"]["start"] == 60_000


def test_archiving_does_not_change_the_words(writer: Writer) -> None:
    writer.write(1, sample(1))
    writer.write(1, sample(1, prompt="another"))
    assert TrajectoryWords.objects.count() == Trajectory.objects.count() == 1


def test_slow_search_is_refused_and_blocks_no_other(writer: Writer, found: Any) -> None:
    writer.write(1, sample(1))
    with pytest.raises(Invalid) as refused, searching(longest_ms=20), connection.cursor() as db:
        db.execute("SELECT pg_sleep(60)")
    assert refused.value.errors[0].code == "too_broad"
    assert len(found("prompt")) == 1
