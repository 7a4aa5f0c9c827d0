"""The searched texts of a trajectory, and the passage that matches a query.

Invariant: at most `MOST_SEARCHED` characters per trajectory are searched: the beginning of each text, prompt first.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from backend.telemetry.compression import compress, decompress
from backend.telemetry.fulltext.question import Question, Term
from backend.telemetry.fulltext.words import Word, words_of
from engine.spec.facts import TrajectorySample

MOST_SEARCHED: Final = 100_000
MOST_OF_PROMPT: Final = 20_000
"""Leaves room for the response after a long prompt."""
AROUND: Final = 80
"""Characters shown before and after a match."""


class SearchedText(NamedTuple):
    place: str
    """`prompt`, `response`, `remark` or `reason`; in a turn: `text`, `tool`, `arguments` or `error`."""
    turn: int | None
    text: str


class Passage(NamedTuple):
    place: str
    turn: int | None
    """Counted from 0; None if not in a turn."""
    start: int
    """Start of the match, in characters of that text."""
    before: str
    match: str
    after: str


def searched_texts(sample: TrajectorySample) -> Sequence[SearchedText]:
    texts, left = [], MOST_SEARCHED
    for each in _all_texts(sample):
        text = each.text[: min(left, MOST_OF_PROMPT if each.place == "prompt" else left)]
        left -= len(text)
        if text:
            texts.append(each._replace(text=text))
    return texts


def pack_texts(texts: Sequence[SearchedText]) -> bytes:
    return compress(json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode())


def unpack_texts(content: bytes | memoryview) -> Sequence[SearchedText]:
    return [SearchedText(*each) for each in json.loads(decompress(content))]


def passage_of(texts: Sequence[SearchedText], question: Question) -> Passage | None:
    """The first match of the most specific term: phrases before single words."""
    for term in sorted(question.wanted, key=lambda term: -len(term.words)):
        for each in texts:
            if (span := _span(each.text, term)) is not None:
                return _around(each, *span)
    return None


def _all_texts(sample: TrajectorySample) -> Iterator[SearchedText]:
    yield SearchedText("prompt", None, sample.prompt)
    if not sample.turns:
        yield SearchedText("response", None, sample.response)
    for number, turn in enumerate(sample.turns):
        for place in ("text", "tool", "arguments", "error"):
            yield SearchedText(place, number, getattr(turn, place))
    yield SearchedText("remark", None, sample.remark)
    yield SearchedText("reason", None, sample.reason)


def _span(text: str, term: Term) -> tuple[int, int] | None:
    last: deque[Word] = deque(maxlen=len(term.words))
    for word in words_of(text):
        last.append(word)
        if term.matches([each.folded for each in last]):
            return last[0].start, word.end
    return None


def _around(each: SearchedText, start: int, end: int) -> Passage:
    before, after = each.text[max(0, start - AROUND) : start], each.text[end : end + AROUND]
    return Passage(each.place, each.turn, start, before, each.text[start:end], after)
