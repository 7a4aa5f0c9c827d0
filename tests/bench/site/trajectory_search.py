"""The time to search 100,000 trajectories of 10 kB each, what their words cost at intake, and on the disk.

    python -m infra.local.testing -- python -m tests.bench.site.trajectory_search [--trajectories 100000] [--json]

Three quarters are of one job, the others of a job of another team. Words come as often as words do (the
n-th most frequent one 1/n as often); 1,000 different texts, each repeated many times with five words of its own.
"""

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

from tests.bench.site.figures import told

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
NUM_TEXTS, NUM_CHARACTERS, NUM_KNOWN = 1_000, 10_000, 30_000
RUNS: Final = 20
NUM_TOLD: Final = 20  # facts of 32 trajectories each, taken in by the real way
SEARCHES: Final[Mapping[str, str]] = {
    "rare": "own5000x1",
    "some": "word900",
    "several": "word40 word300 word900",
    "everywhere": "word1",
    "phrase": '"word7 word12"',
    "without": "word40 -word41",
    "beginning": "word1234*",
}


def measured(num: int) -> dict[str, float]:
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    ours, theirs = (job_of_team(name) for name in ("ours", "theirs"))
    texts = list(texts_by(random.Random(1)))
    figures = {"characters": statistics.mean(map(len, texts))}
    with connection.cursor() as db:
        db.execute("SET statement_timeout = 0; DROP INDEX trajectory_words")
        began = time.perf_counter()
        fill(ours, theirs, texts, num)
        figures["filled_s"] = time.perf_counter() - began
        db.execute("SET maintenance_work_mem = '256MB'")
        db.execute(
            "CREATE INDEX trajectory_words ON telemetry_trajectorywords "
            "USING gin (array_to_tsvector(string_to_array(words, ' ')))"
        )
        db.execute("VACUUM ANALYZE")
    figures |= intake(ours, texts, step=num)
    took = [each for typed in SEARCHES.values() for each in searched_ms(ours, typed)]
    figures |= {f"{name}_ms": statistics.median(searched_ms(ours, typed)) for name, typed in SEARCHES.items()}
    figures |= {"search_p50_ms": statistics.median(took), "search_p95_ms": statistics.quantiles(took, n=20)[-1]}
    with connection.cursor() as db:
        for name in ("telemetry_trajectorywords", "telemetry_trajectory"):
            db.execute("SELECT pg_total_relation_size(%s::regclass) / 1e6", [name])
            figures[f"{name.removeprefix('telemetry_')}_mb"] = float(db.fetchone()[0])
        db.execute("SELECT pg_relation_size('trajectory_words') / 1e6")
        figures["index_mb"] = float(db.fetchone()[0])
    return figures


def job_of_team(name: str) -> Any:
    from django.db import connection

    from backend.accounts.models import Project, Team, User
    from backend.jobs.models import Job
    from backend.pools.models import ResourcePool

    team, user = Team.objects.create(name=name), User.objects.create_user(f"{name}@example.org")
    pool, _ = ResourcePool.objects.get_or_create(name="bench", flavor="cpu", capacity=8)
    with connection.cursor() as db:  # a row that never ran: no guard would let it in
        db.execute("ALTER TABLE jobs_job DISABLE TRIGGER USER")
    return Job.objects.create(
        name="bench", spec={}, state="running", num_attempts=1, created_at=NOW, team=team, created_by=user, pool=pool,
        project=Project.objects.create(team=team, name=name), devices=3, min_devices=3, steps=1, max_runtime_s=60,
    )  # fmt: skip


def texts_by(chance: random.Random) -> Iterator[str]:
    known = [f"word{rank}" for rank in range(1, NUM_KNOWN + 1)]
    weights = list(accumulate(1 / rank for rank in range(1, NUM_KNOWN + 1)))
    for _ in range(NUM_TEXTS):
        yield " ".join(chance.choices(known, cum_weights=weights, k=NUM_CHARACTERS // 6))[:NUM_CHARACTERS]


def sample_of(text: str, number: int) -> Any:
    from engine.spec.facts import TrajectorySample

    own = " ".join(f"own{number}x{each}" for each in range(5))
    return TrajectorySample(
        prompt_ordinal=number, sample=0, version=1, staleness=0, num_tokens=2_000, reward=0.5, advantage=0.0,
        prompt=text[:1_000], response=f"{text[1_000:]} {own}",
    )  # fmt: skip


def fill(ours: Any, theirs: Any, texts: Sequence[str], num: int) -> None:
    """The rows as the intake makes them, the words of a text made once."""
    from django.db import connection

    from backend.telemetry.fulltext.indexing import mark_of_job, mark_of_team
    from backend.telemetry.fulltext.searched_texts import pack_texts, searched_texts
    from backend.telemetry.fulltext.words import kept_words
    from backend.telemetry.models import Trajectory
    from backend.telemetry.trajectories.storing import MOST_SHOWN

    said = [searched_texts(sample_of(text, 0)) for text in texts]
    made = [(kept_words([each.text for each in parts], ()), pack_texts(parts)) for parts in said]
    fields = {"attempt": 1, "sample": 0, "version": 1, "staleness": 0, "num_tokens": 2_000}
    for first in range(0, num, 1_000):
        rows = Trajectory.objects.bulk_create(
            Trajectory(
                job=theirs if number % 4 == 3 else ours, step=number // 32, prompt_ordinal=number, reward=0.5,
                advantage=0.0, prompt=texts[number % NUM_TEXTS][:1_000], cursor=0,
                response=texts[number % NUM_TEXTS][1_000 : 1_000 + MOST_SHOWN], **fields,
            )
            for number in range(first, min(first + 1_000, num))
        )  # fmt: skip
        with (
            connection.cursor() as db,
            db.copy("COPY telemetry_trajectorywords (trajectory_id, job_id, words, content) FROM STDIN") as copied,
        ):
            for row in rows:
                words, content = made[row.prompt_ordinal % NUM_TEXTS]
                marks = [mark_of_job(row.job_id), mark_of_team(row.job.team_id)]
                own = " ".join([*marks, *(f"own{row.prompt_ordinal}x{each}" for each in range(5))])
                copied.write_row((row.pk, row.job_id, f"{own} {words}", content))


def intake(job: Any, texts: Sequence[str], *, step: int) -> dict[str, float]:
    """Of whole facts by the real way, into the full index, with their words and without."""
    from django.db import transaction

    from backend.jobs.lifecycle import locked_job, next_cursor
    from backend.telemetry.fulltext.indexing import store_words
    from backend.telemetry.trajectories import storing as trajectories
    from engine.spec.facts import TrajectoriesSampled

    took: dict[str, list[float]] = {"without_words": [], "with_words": []}
    for number in range(2 * NUM_TOLD):
        kind = "with_words" if number % 2 else "without_words"
        setattr(trajectories, "store_words", store_words if number % 2 else lambda *_: None)  # noqa: B010
        samples = [sample_of(texts[(number * 32 + each) % NUM_TEXTS], number * 32 + each) for each in range(32)]
        body = TrajectoriesSampled(step=step + number, trajectories=samples)
        began = time.perf_counter()
        with transaction.atomic():
            locked = locked_job(job.pk)
            trajectories.store_trajectories(locked, 1, body, cursor=next_cursor(locked), now=NOW)
        took[kind].append((time.perf_counter() - began) * 1_000)
    return {f"{name}_ms": statistics.mean(each) / 32 for name, each in took.items()} | {
        "slowest_fact_ms": max(took["with_words"])
    }


def searched_ms(job: Any, typed: str) -> list[float]:
    """All that the route does but for the request itself."""
    from backend.telemetry.fulltext.finding import passages_of
    from backend.telemetry.fulltext.question import question_of
    from backend.telemetry.trajectories.search import Wanted, search_trajectories

    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        question = question_of(typed)
        found, _ = search_trajectories(job, Wanted(question=question), limit=20)
        passages_of(found, question)
        took.append((time.perf_counter() - began) * 1_000)
    return took


if __name__ == "__main__":
    raise SystemExit(told(__doc__, measured, of="trajectories", many=100_000))
