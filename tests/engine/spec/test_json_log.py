"""JSON log lines: one object a line, which values cannot forge, without secrets."""

import io
import json
import logging
from typing import Any

import pytest

from engine.spec.logs.log_subject import about
from engine.spec.logs.log_text import JsonLine, OneLine, form_of, without_secrets
from tests.engine.spec.test_printable import HOSTILE

SECRETS = [
    ("redis://:hunter2@valkey:6379/0", "hunter2"),
    ("postgresql://laminar:p%40ss+w@db/laminar?sslmode=require", "p%40ss+w"),
    ("Authorization: Bearer eyJhbGci.oi_J-x", "eyJhbGci"),
    ('{"authorization": "bearer abc123def"}', "abc123def"),
    ("key lam_live_0a1b2c3d_" + "s" * 43, "ssss"),
    ("token=lam_run_zzzzzzzz", "zzzz"),
]


def line_of(message: str, *arguments: object, failure: BaseException | None = None, **extra: object) -> dict[str, Any]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLine())
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, arguments, None)
    vars(record).update(extra)
    if failure is not None:
        record.exc_info = (type(failure), failure, failure.__traceback__)
    handler.emit(record)
    (line, rest) = stream.getvalue().split("\n")
    assert rest == "" and line.isascii() and line.isprintable()
    record_read: dict[str, Any] = json.loads(line)
    return record_read


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_json_line_has_time_level_logger_and_message() -> None:
    line = line_of("it took %.1f s", 2.5, created=1_767_614_400.25)
    assert line == {
        "time": "2026-01-05T12:00:00.250Z", "level": "WARNING", "logger": "a.b", "message": "it took 2.5 s",
    }  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_record_is_one_printable_object(text: str) -> None:
    line = line_of("job=%s said=%r %s", text, text, '", "level": "FATAL', failure=raised(text + '"}\n{"level": "X"}'))
    assert line["level"] == "WARNING" and line["message"].isprintable() and line["job"].isprintable()
    assert all(each.isprintable() and each.startswith("    ") for each in line["exception"].split("\n"))


class TestSubject:
    def test_job_and_attempt_come_from_the_format_string(self) -> None:
        line = line_of("launched job=%s attempt=%d after=%5.1f%% submission=%s", "job_1", 2, 3.0, "x")
        assert (line["job"], line["attempt"]) == ("job_1", 2)

    def test_value_cannot_set_the_job(self) -> None:
        line = line_of("refused error=%s", "job=job_of_somebody attempt=9")
        assert "job" not in line and "attempt" not in line

    def test_job_and_attempt_default_to_the_context(self) -> None:
        with about(request_id="req_1"), about(job="job_1", attempt=2):
            within, of_another = line_of("plain"), line_of("stopped job=%s", "job_2")
        assert (within["request_id"], within["job"], within["attempt"]) == ("req_1", "job_1", 2)
        assert of_another["job"] == "job_2" and "attempt" not in of_another, "attempt 2 belongs to job_1"
        assert "job" not in line_of("plain")


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secret_is_in_no_line(text: str, secret: str) -> None:
    line = line_of("cannot reach %s", text, failure=raised(text))
    assert secret not in json.dumps(line) and "cannot reach" in line["message"]
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "cannot reach %s", (text,), None)
    assert secret not in OneLine().format(record), "nor in the text format"


@pytest.mark.parametrize("text", ["https://laminar.example/jobs/job_1", "12:30 to a@b.example", "http://h:8000/a@b"])
def test_other_text_stays_unchanged(text: str) -> None:
    assert without_secrets(text) == text


def test_only_known_extras_are_written() -> None:
    line = line_of("x", password="hunter2", request="cookie", request_id="req_9")
    assert "hunter2" not in json.dumps(line) and "cookie" not in json.dumps(line) and line["request_id"] == "req_9"


def test_unknown_log_format_is_refused() -> None:
    assert form_of("") is form_of("text") is OneLine and form_of("json") is JsonLine
    with pytest.raises(ValueError, match="LAMINAR_LOG_FORMAT: text or json, got 'xml'"):
        form_of("xml")
