"""Text that is what it looks like, and log lines that values cannot forge."""

import io
import logging
import unicodedata

import pytest

from engine.spec.logs.log_text import OneLine
from engine.spec.printable import escaped, refuse_unreadable

FORGED = "name\n2026-01-05 12:00:00,000 ERROR root everything is lost"
HOSTILE = [
    FORGED, "\x1b[2J\x1b[31mred", "\r over", "\x9b31m", "\u202egnp.exe", "\u2066a\u2069", "a\u200bb", "\u2028", "\x85",
    "\ud800", "\x00", "\ufeff", "\u3164", "\U000e0041", "\u115f", "\x07", "\ufe0f",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_escaped_text_is_visible_and_has_no_controls(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown and shown.isprintable()
    assert not [each for each in shown if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Mn", "Zl", "Zp"}]
    assert shown != text and escaped(shown) == shown


@pytest.mark.parametrize("text", ["", "plain words", "Zoë 日本語 مرحبا 😀", "a=b c='d' \\n as it was typed"])
def test_visible_text_stays_unchanged(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize("name", ["a\u200db", "\u0645\u06cc\u200c\u062e", "\u2764\ufe0f", "plain", ""])
def test_names_may_contain_joiners(name: str) -> None:
    assert refuse_unreadable(name) == name


@pytest.mark.parametrize("name", ["\u200d\u200c", "\ufe0f", "   ", "a\u202e", "\u00a0", "\ue000", "x\u180e"])
def test_invisible_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        refuse_unreadable(name)


def logged(message: str, *arguments: object, failure: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine())
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, message, arguments, None)
    if failure is not None:
        record.exc_info = (type(failure), failure, failure.__traceback__)
    handler.emit(record)
    return stream.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_record_is_one_line(text: str) -> None:
    lines = logged("job=%s it=%r", text, text).split("\n")
    assert len(lines) == 2 and lines[1] == "", lines
    assert lines[0].isprintable() and lines[0].isascii()


def test_traceback_is_indented_and_escaped() -> None:
    try:
        raise ValueError(FORGED + "\x1b[2J")
    except ValueError as error:
        lines = logged("failed", failure=error).rstrip("\n").split("\n")
    assert len(lines) > 3 and all(line.startswith("    ") and line.isprintable() for line in lines[1:]), lines
    assert "ValueError: name" in "".join(lines)


def test_other_handlers_get_the_record_unchanged() -> None:
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "%s", (FORGED,), None)
    OneLine().format(record)
    assert record.args == (FORGED,) and record.getMessage() == FORGED
