"""Log lines over a real uvicorn, as they are written: each exactly once, wherever the stream breaks."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from backend.accounts.models import User
from backend.accounts.services import revoke_api_key
from backend.feeds import log_lines
from backend.feeds.log_lines import LogSource, Place
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from backend.telemetry.logs.batches import Wanted
from backend.telemetry.models import LogBatch
from tests.backend.telemetry.test_logs import tell


def batches(job: Job, num: int, *, lines: int = 5) -> list[str]:
    """Lines of two parts in turn, with an error in each."""
    messages = []
    for batch in range(num):
        part = ("driver", "trainer")[batch % 2]
        words = [f"{batch}.{line}" for line in range(lines)]
        tell(job, part, *[("error" if line == 2 else "info", word) for line, word in enumerate(words)])
        messages += words
    return messages


def over(job: Job) -> None:
    cancel_job(job.pk, actor="user:1", now=datetime.now(UTC))


def searched_texts(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["data"]["message"] for frame in frames if frame["event"] == "line"]


class TestOverHttp:
    def test_existing_lines_come_first_then_new_ones(self, listen: Any, job: Job) -> None:
        tell(job, "driver", ("info", "old"))
        stream = listen(f"/jobs/{job.pk}/logs/stream")
        assert stream.response.headers["content-type"] == "text/event-stream"
        first = stream.next()
        assert (first["event"], first["data"]["message"], first["data"]["component"]) == ("line", "old", "driver")
        tell(job, "rollout-0", ("warning", "new"))
        assert stream.next()["data"]["message"] == "new"
        over(job)
        assert stream.next() == {"event": "end", "data": {"state": "cancelled"}}

    def test_each_line_comes_once_wherever_the_stream_is_cut(self, listen: Any, job: Job) -> None:
        messages = batches(job, 4)
        over(job)
        path = f"/jobs/{job.pk}/logs/stream?tail=2000"
        whole = [frame for frame in listen(path).rest() if "id" in frame]
        assert searched_texts(whole) == messages
        for cut in range(len(whole)):
            rest = listen(path, last=whole[cut]["id"])
            rest_messages = searched_texts(rest.rest()) if rest.status == 200 else []
            assert searched_texts(whole[: cut + 1]) + rest_messages == messages, f"cut after {whole[cut]['id']}"

    def test_ended_job_with_all_lines_received_is_204(self, listen: Any, job: Job) -> None:
        batches(job, 1)
        over(job)
        last = [frame["id"] for frame in listen(f"/jobs/{job.pk}/logs/stream").rest() if "id" in frame][-1]
        assert listen(f"/jobs/{job.pk}/logs/stream", last=last).status == 204, "so that a browser stops reconnecting"

    @pytest.mark.long_except("?component=trainer-wanted0", "?level=error-wanted1")
    @pytest.mark.parametrize(
        ("query", "wanted"),
        [
            ("?component=trainer", [f"1.{n}" for n in range(5)] + [f"3.{n}" for n in range(5)]),
            ("?level=error", ["0.2", "1.2", "2.2", "3.2"]),
            ("?q=3.", [f"3.{n}" for n in range(5)]),
            ("?tail=1", [f"3.{n}" for n in range(5)]),
            ("?tail=0", []),
        ],
    )
    def test_filters_and_tail(self, listen: Any, job: Job, query: str, wanted: list[str]) -> None:
        batches(job, 4)
        stream = listen(f"/jobs/{job.pk}/logs/stream{query}")
        stream.any()  # its place is set before more is written
        tell(job, "trainer", ("error", "3. after"))
        over(job)
        assert searched_texts(stream.rest()) == [*wanted, "3. after"]

    def test_dropped_lines_are_reported_once(self, listen: Any, job: Job) -> None:
        tell(job, "driver", ("info", "a"), ("info", "b"), num_dropped=7)
        over(job)
        frames = listen(f"/jobs/{job.pk}/logs/stream").rest()
        assert [frame["event"] for frame in frames] == ["dropped", "line", "line", "end"]
        assert frames[0]["data"]["message"].startswith("7 lines were dropped")
        again = listen(f"/jobs/{job.pk}/logs/stream", last=frames[0]["id"]).rest()
        assert [frame["event"] for frame in again] == ["line", "line", "end"]

    @pytest.mark.long_except("1.", "9999999999999999999", "1.12345")
    @pytest.mark.parametrize("last", ["x", "-1", "1.5.2", "1.", "9" * 19, "1.12345"])
    def test_invalid_place_is_refused(self, listen: Any, job: Job, last: str) -> None:
        refused = listen(f"/jobs/{job.pk}/logs/stream", last=last)
        assert (refused.status, refused.problem()["code"]) == (422, "invalid"), last

    def test_revoked_key_is_cut_off_at_once(self, listen: Any, job: Job, api: Any, key_row: Any) -> None:
        tell(job, "driver", ("info", "before"))
        stream = listen(f"/jobs/{job.pk}/logs/stream")
        stream.next()
        revoke_api_key(key_row(api.key), now=datetime.now(UTC))
        tell(job, "driver", ("info", "secret"))
        assert stream.rest() == [{"event": "goodbye", "data": {"code": "unauthenticated"}}]

    @pytest.mark.long
    def test_hundred_readers_need_no_thread_each(self, listen: Any, job: Job, make_key: Any, alice: User) -> None:
        """All of them receive the lines. The server is in this process."""
        tell(job, "driver", ("info", "first"))
        before = threading.active_count()
        keys = [make_key(alice) for _ in range(10)]
        streams = [listen(f"/jobs/{job.pk}/logs/stream", key=key) for key in keys * 10]
        for stream in streams:
            assert stream.next()["data"]["message"] == "first"
        assert threading.active_count() - before <= 10
        tell(job, "driver", ("info", "second"))
        for stream in streams:
            assert stream.next()["data"]["message"] == "second"


@pytest.mark.django_db
class TestTheSource:
    def pulled(self, source: LogSource) -> tuple[list[str], bool]:
        pulled = source.pull([])
        return [each.decode() for each in pulled.frames], pulled.again

    def test_filtered_lines_are_not_read_again(self, job: Job) -> None:
        batches(job, 3)
        frames, _ = self.pulled(LogSource(job, Place(cursor=0), Wanted(text="nothing like it")))
        last = LogBatch.objects.order_by("-cursor")[0].cursor
        assert frames == [f"id: {last}\n\n"], "an id of its own, and no event"

    def test_client_gets_its_place_before_the_first_line(self, job: Job) -> None:
        """Otherwise it would reconnect without a place, and miss lines beyond its tail."""
        frames, _ = self.pulled(LogSource(job, Place(cursor=7), Wanted()))
        assert frames == ["id: 7\n\n"]

    def test_pull_is_bounded_and_continues(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_lines, "BATCHES_AT_ONCE", 2)
        messages = batches(job, 5)
        source, told, again = LogSource(job, Place(cursor=0), Wanted()), list[str](), True
        looks = 0
        while again:
            frames, again = self.pulled(source)
            told, looks = told + frames, looks + 1
        assert looks == 3 and "".join(told).count("event: line") == len(messages)

    def test_empty_pull_costs_two_statements(self, job: Job, django_assert_num_queries: Any) -> None:
        batches(job, 3)
        source = LogSource(job, Place(cursor=0), Wanted())
        source.pull([])
        with django_assert_num_queries(2):
            assert source.pull([]).frames == []


def test_place_round_trips_through_text() -> None:
    for text in ("0", "812", "812.0", "812.200"):
        assert str(Place.read(text)) == text
